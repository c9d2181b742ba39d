"""Which leaked containerd-shims the server kills, and when."""

import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from shim import pod
from shim.daemon import shim_leaks
from shim.daemon.background import background
from shim.daemon.shim_leaks import ShimLeaks, maker_of
from shim.domain.errors import Unavailable
from shim.engine.answers import ContainerSummary
from shim.runtime import Runtime
from tests.descriptors import no_descriptor_free
from tests.dockerd.shims import make_task, running_shim
from tests.fakes.engine import FakeEngine


@pytest.fixture
def leaks(rt: Runtime, engine: FakeEngine, tmp_path: Path) -> ShimLeaks:
    engine.engine_info = msgspec.structs.replace(engine.engine_info, docker_root_dir=str(tmp_path / "docker"))
    rt.facts.info(max_age=0)
    return ShimLeaks(rt)


def task(rt: Runtime, home: Path, *, resolv_conf: Path | None = None) -> Path:
    root = maker_of(rt).docker_root
    ours = pod.resolv_conf_directory(rt.config)
    return make_task(home / "moby/app", address=home / "a.sock", docker_root=root, resolv_conf=resolv_conf or ours)


def test_our_leaked_shim_is_killed_when_found_again(rt: Runtime, leaks: ShimLeaks, tmp_path: Path) -> None:
    with running_shim(task(rt, tmp_path), tmp_path / "a.sock") as shim:
        assert leaks.search()
        assert (shim.poll(), leaks.ended) == (None, 0)
        assert not leaks.search()
        assert shim.wait(20) == -9
        assert (leaks.ended, leaks.left) == (1, 0)


def test_foreign_leaked_shim_is_counted_and_stays(rt: Runtime, leaks: ShimLeaks, tmp_path: Path) -> None:
    with running_shim(task(rt, tmp_path, resolv_conf=tmp_path / "theirs"), tmp_path / "a.sock") as shim:
        assert leaks.search()
        for _ in range(2):
            assert not leaks.search()
            assert (shim.poll(), leaks.ended, leaks.left) == (None, 0, 1)
    leaks.search()
    assert leaks.left == 0


def test_no_shim_is_killed_while_docker_does_not_answer(
    rt: Runtime, engine: FakeEngine, leaks: ShimLeaks, tmp_path: Path
) -> None:
    with running_shim(task(rt, tmp_path), tmp_path / "a.sock") as shim:
        leaks.search()
        engine.fail_next("list_containers", Unavailable("docker is gone"))
        with pytest.raises(Unavailable):
            leaks.search()
        assert (shim.poll(), leaks.ended) == (None, 0)


def test_shim_that_is_no_longer_leaked_is_neither_killed_nor_counted(
    rt: Runtime, engine: FakeEngine, leaks: ShimLeaks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Iterator[list[ContainerSummary]] = iter([[], [], [ContainerSummary(id="app")]])
    monkeypatch.setattr(engine, "list_containers", lambda: next(answers))
    with running_shim(task(rt, tmp_path), tmp_path / "a.sock") as shim:
        leaks.search()
        leaks.search()
        assert (shim.poll(), leaks.ended, leaks.left) == (None, 0, 0)


def test_a_search_without_a_free_descriptor_is_repeated(leaks: ShimLeaks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_leaks, "AGAIN", 0.01)
    with background(leaks.watch, name="leaks"), no_descriptor_free():
        threading.Event().wait(0.1)
        assert [thread for thread in threading.enumerate() if thread.name == "leaks"]
