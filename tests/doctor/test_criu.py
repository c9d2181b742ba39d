from pathlib import Path

import pytest

from shim.criu import program
from shim.doctor.criu import check_criu


def found(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setattr(program, "_DIRECTORIES", "/bin")
    if script:
        (tmp_path / "criu").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "criu").chmod(0o755)
    [finding] = check_criu({"PATH": str(tmp_path)})
    return finding.level, finding.text


def test_a_node_without_criu_is_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, text = found(tmp_path, "", monkeypatch)
    assert level == "ok"
    assert "install the package criu" in text


def test_a_criu_that_passes_its_check_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = '[ "$*" = --version ] && printf "Version: 4.2\nGitID: v4.2\n" && exit; [ $1 = check ] || [ $1 = dump ]'
    assert found(tmp_path, script, monkeypatch) == (
        "ok",
        f"of containers can be made: {tmp_path}/criu 4.2 has dumped a process",
    )


def test_a_criu_that_fails_its_check_is_a_warning_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    level, text = found(tmp_path, "echo unexpected bounds >&2; exit 1", monkeypatch)
    assert level == "warn"
    assert text.endswith("unexpected bounds")


def test_a_criu_that_cannot_dump_is_a_warning_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level, text = found(tmp_path, "[ $1 != dump ] || exit 4", monkeypatch)
    assert (level, text) == ("warn", "are not possible: a process cannot be dumped: criu dump ended with 4")


def test_a_criu_that_cannot_be_executed_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_DIRECTORIES", "/bin")
    (tmp_path / "criu").write_bytes(b"\x7fELF")
    (tmp_path / "criu").chmod(0o755)
    [finding] = check_criu({"PATH": str(tmp_path)})
    assert finding.level == "warn"
    assert "Exec format error" in finding.text
