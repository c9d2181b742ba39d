"""Containerd-shims of removed containers are found, with their creator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.dockerd import leaked_shims as module
from shim.dockerd.leaked_shims import LeakedShim, Maker, leaked_shims
from shim.engine import daemon_process
from tests.dockerd.shims import make_task, running_shim


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(docker_root=tmp_path / "docker", resolv_conf=tmp_path / "state/resolv-conf")


def task(home: Path, name: str, maker: Maker, *, address: str = "a.sock", old: bool = False) -> Path:
    root, resolv_conf = maker.docker_root, maker.resolv_conf
    return make_task(home / "moby" / name, address=home / address, docker_root=root, resolv_conf=resolv_conf, old=old)


@pytest.mark.parametrize("old", [False, True])
def test_a_shim_of_removed_containers_is_found(tmp_path: Path, maker: Maker, *, old: bool) -> None:
    first = task(tmp_path, "pause", maker, old=old)
    task(tmp_path, "app", maker, old=old)
    with running_shim(first, tmp_path / "a.sock") as shim:
        found = leaked_shims(set, maker=maker)
        assert found == [LeakedShim(pid=shim.pid, containers=("app", "pause"), serves_others=False, ours=True)]
        assert not leaked_shims(lambda: {"pause", "app"}, maker=maker)


def test_a_shim_whose_first_container_is_gone_is_found(tmp_path: Path, maker: Maker) -> None:
    first = task(tmp_path, "pause", maker)
    task(tmp_path, "app", maker)
    with running_shim(first, tmp_path / "a.sock"):
        for path in first.iterdir():
            path.unlink()
        first.rmdir()
        assert [leak.containers for leak in leaked_shims(set, maker=maker)] == [("app",)]


def test_the_shim_of_an_existing_container_is_no_leak(tmp_path: Path, maker: Maker) -> None:
    first = task(tmp_path, "pause", maker)
    task(tmp_path, "app", maker)
    with running_shim(first, tmp_path / "a.sock"):
        [leak] = leaked_shims(lambda: {"pause"}, maker=maker)
        assert (leak.containers, leak.serves_others) == (("app",), True)


def test_a_container_of_another_creator_is_not_ours(tmp_path: Path, maker: Maker) -> None:
    other = Maker(docker_root=maker.docker_root, resolv_conf=tmp_path / "of-others")
    with running_shim(task(tmp_path, "app", other), tmp_path / "a.sock"):
        [leak] = leaked_shims(set, maker=maker)
        assert not leak.ours


def test_a_shim_with_containers_of_two_makers_is_not_ours(tmp_path: Path, maker: Maker) -> None:
    first = task(tmp_path, "pause", maker)
    task(tmp_path, "app", Maker(docker_root=maker.docker_root, resolv_conf=tmp_path / "of-others"))
    with running_shim(first, tmp_path / "a.sock"):
        [leak] = leaked_shims(set, maker=maker)
        assert not leak.ours


def test_a_container_of_another_docker_is_no_leak(tmp_path: Path, maker: Maker) -> None:
    other = Maker(docker_root=tmp_path / "another", resolv_conf=maker.resolv_conf)
    with running_shim(task(tmp_path, "app", other), tmp_path / "a.sock"):
        assert not leaked_shims(set, maker=maker)


def test_a_process_cannot_pose_as_the_shim_of_a_task(tmp_path: Path, maker: Maker) -> None:
    real, forged = task(tmp_path, "app", maker), tmp_path / "forged"
    with running_shim(real, tmp_path / "a.sock") as shim:
        task(forged, "lost", maker, address="../a.sock")
        with running_shim(forged / "moby/lost", tmp_path / "b.sock"):
            assert not leaked_shims(lambda: {"app"}, maker=maker)
            assert [leak.pid for leak in leaked_shims(set, maker=maker)] == [shim.pid]


def test_a_configuration_that_is_too_large_is_not_read(
    tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = task(tmp_path, "app", maker)
    with (app / "config.json").open("a") as file:
        file.write(" " * (4 << 20))
    with running_shim(app, tmp_path / "a.sock"):
        assert not leaked_shims(set, maker=maker)
        monkeypatch.setattr(module, "CONFIG_LIMIT", 5 << 20)
        assert leaked_shims(set, maker=maker)


def test_the_sockets_of_the_node_are_listed_once(tmp_path: Path, maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 250 pods a list for each shim and task took minutes of a processor."""
    lists = []
    dump = daemon_process._dump

    def counted() -> Iterator[bytes]:
        lists.append(1)
        return dump()

    monkeypatch.setattr(daemon_process, "_dump", counted)
    first = task(tmp_path, "one", maker)
    for number in range(20):
        task(tmp_path, f"more-{number}", maker)
    with running_shim(first, tmp_path / "a.sock"):
        [leak] = leaked_shims(set, maker=maker)
    assert len(leak.containers) == 21
    assert len(lists) == 1
