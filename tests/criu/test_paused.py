"""A container that was paused for a checkpoint goes on, whatever runc does."""

from collections.abc import Callable
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from shim.criu import dump
from shim.criu.dump import Failure, Paused
from shim.criu.order import Source

Script = Callable[[str], Paused]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Provide a function that makes a runc from the cases of a shell script; its calls are lines of `calls`."""
    monkeypatch.setattr(dump, "_CHECK_SECONDS", 0.5)

    def make(cases: str) -> Paused:
        runc = tmp_path / "runc"
        runc.write_text(f'#!/bin/sh\necho "$3" >> {tmp_path}/calls\ncase "$3" in\n{cases}\nesac\n')
        runc.chmod(0o755)
        source = Source(
            container="c",
            pid=1,
            shared_pids=0,
            runc=str(runc),
            state_root=str(tmp_path),
            upper="/upper",
            log="",
            documents={},
        )
        return Paused(source, {"PATH": "/usr/bin:/bin"})

    return make


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().split()


def test_a_container_is_resumed_after_the_block(script: Script, tmp_path: Path) -> None:
    with script("*) ;;"):
        assert calls(tmp_path) == ["pause"]
    assert calls(tmp_path) == ["pause", "resume"]


@pytest.mark.parametrize("case", ["pause) echo no >&2; exit 1;;", "pause) exec sleep 60;;"], ids=["fails", "hangs"])
def test_a_container_whose_pause_fails_is_resumed(script: Script, tmp_path: Path, case: str) -> None:
    paused = script(case)
    with pytest.raises((Failure, TimeoutExpired)), paused:
        pytest.fail("not paused")
    assert calls(tmp_path) == ["pause", "resume"]


def test_a_resume_that_hangs_or_fails_is_repeated(script: Script, tmp_path: Path) -> None:
    count = f"$(grep -c resume {tmp_path}/calls)"
    with script(f'resume) case {count} in 1) exec sleep 60;; 2) echo "no freezer" >&2; exit 1;; esac;;'):
        pass
    assert calls(tmp_path) == ["pause", "resume", "resume", "resume"]


def test_a_container_that_never_resumes_is_an_error(script: Script) -> None:
    with pytest.raises(Failure, match="runc resume: no freezer"), script('resume) echo "no freezer" >&2; exit 1;;'):
        pass


def test_a_container_that_is_not_paused_counts_as_resumed(script: Script, tmp_path: Path) -> None:
    with script('resume) echo "container not paused" >&2; exit 1;;'):
        pass
    assert calls(tmp_path) == ["pause", "resume"]
