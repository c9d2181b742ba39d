import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.hostfs.host_paths import HostSource, inspect_host_path
from shim.spec import mounts as module
from shim.spec.mounts import check_propagation, container_path, docker_mount
from tests.container.propagating import propagating_mounts


def made(mount: pb.Mount, *, api: tuple[int, int] = (1, 44), recursive: bool = False) -> dict[str, Any]:
    with_mount = mount.propagation != pb.PROPAGATION_PRIVATE
    source = inspect_host_path(mount.host_path, field="config.mounts[0]", with_mount=with_mount)
    return docker_mount(mount, source, field="config.mounts[0]", api_version=api, recursive_read_only=recursive)


def source(path: Path) -> str:
    found: str = made(pb.Mount(host_path=str(path), container_path="/x"))["Source"]
    return found


def test_a_plain_mount_is_a_bind_mount(tmp_path: Path) -> None:
    assert made(pb.Mount(host_path=str(tmp_path), container_path="data/../x")) == {
        "Type": "bind",
        "Source": str(tmp_path),
        "Target": "/x",
        "ReadOnly": False,
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/a/../../b/", "/b"), ("//etc//resolv.conf", "/etc/resolv.conf"), ("a/./b", "/a/b"), ("/..", "/"), ("///", "/")],
)
def test_container_paths_are_normalised(path: str, expected: str) -> None:
    assert container_path(pb.Mount(container_path=path)) == expected


@pytest.mark.parametrize(
    ("propagation", "expected"),
    [(pb.PROPAGATION_HOST_TO_CONTAINER, "rslave"), (pb.PROPAGATION_BIDIRECTIONAL, "rshared")],
)
def test_propagation_is_converted(
    propagation: pb.MountPropagation, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[HostSource, dict[str, Any]]] = []
    monkeypatch.setattr(module, "check_propagation", lambda source, **said: asked.append((source, said)))
    mount = made(pb.Mount(host_path=str(tmp_path), container_path="/x", propagation=propagation))
    assert mount["BindOptions"] == {"Propagation": expected}
    [(source, said)] = asked
    assert (source.path, source.mount is not None) == (str(tmp_path), True)
    assert said == {"propagation": propagation, "field": "config.mounts[0]"}


def test_parent_directories_are_resolved_by_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    assert source(tmp_path / "link/../new") == str(tmp_path / "a/new")


def test_any_kind_of_file_can_be_mounted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name in ("file", "socket"):
            assert source(tmp_path / name) == str(tmp_path / name)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file/below", "not a directory"),
        ("loop", "too many levels of symbolic links"),
        ("loop/below", "too many levels of symbolic links"),
        ("dangling", r"the link .*/dangling leads to nowhere, where nothing is"),
        ("dangling/below", r"the link .*/dangling leads to nowhere, where nothing is"),
        ("n" * 300, "file name too long"),
    ],
    ids=["below a file", "loop", "below a loop", "dangling", "below dangling", "too long"],
)
def test_an_unusable_host_path_is_named(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[0\]\.host_path .*/{path}: {message}"):
        source(tmp_path / path)
    assert sorted(tmp_path.rglob("*")) == before


def test_read_only_is_combined_with_propagation(tmp_path: Path) -> None:
    mount = made(pb.Mount(host_path=str(tmp_path), container_path="/x", readonly=True))
    assert (mount["ReadOnly"], mount["BindOptions"]) == (True, {"ReadOnlyNonRecursive": True})
    mount = made(
        pb.Mount(host_path=str(tmp_path), container_path="/x", readonly=True, recursive_read_only=True), recursive=True
    )
    assert (mount["ReadOnly"], mount["BindOptions"]) == (True, {"ReadOnlyForceRecursive": True})


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A directory on a mount of each kind."""
    with propagating_mounts(tmp_path) as mounts:
        yield mounts


def inspected(path: Path) -> HostSource:
    return inspect_host_path(str(path), field="config.mounts[0]", with_mount=True)


PRIVATE, IN, BOTH = pb.PROPAGATION_PRIVATE, pb.PROPAGATION_HOST_TO_CONTAINER, pb.PROPAGATION_BIDIRECTIONAL


@pytest.mark.parametrize(
    ("kind", "propagation"),
    [("shared", IN), ("shared", BOTH), ("slave", IN), ("shared", PRIVATE), ("slave", PRIVATE), ("private", PRIVATE)],
)
def test_propagation_that_the_mount_allows_passes(
    mounts: dict[str, Path], kind: str, propagation: pb.MountPropagation
) -> None:
    check_propagation(inspected(mounts[kind]), propagation=propagation, field="config.mounts[0]")
    check_propagation(inspected(mounts[kind] / "not/there"), propagation=propagation, field="config.mounts[0]")


@pytest.mark.parametrize(
    ("kind", "propagation", "wanted"),
    [("private", IN, "shared or slave"), ("private", BOTH, "shared"), ("slave", BOTH, "shared")],
)
def test_propagation_that_the_mount_forbids_is_refused_with_advice(
    mounts: dict[str, Path], kind: str, propagation: pb.MountPropagation, wanted: str
) -> None:
    point = mounts[kind].parent
    with pytest.raises(FailedPrecondition) as refusal:
        check_propagation(inspected(mounts[kind]), propagation=propagation, field="config.mounts[2]")
    assert str(refusal.value) == (
        f"config.mounts[2].propagation {pb.MountPropagation.Name(propagation)}: {mounts[kind]} is on the mount {point},"
        f" which is not {wanted}; `mount --make-rshared {point}` on the node makes it so"
    )
