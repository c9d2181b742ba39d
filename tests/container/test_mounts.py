import socket
from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container import mounts as module
from shim.container.mounts import container_path, docker_mount, ensure_host_paths, relabel_mounts
from shim.errors import FailedPrecondition, Unsupported


def made(mount: pb.Mount, *, api: tuple[int, int] = (1, 44), recursive: bool = False) -> dict[str, Any]:
    return docker_mount(mount, field="config.mounts[0]", api_version=api, recursive_read_only=recursive)


def source(path: Path) -> str:
    found: str = made(pb.Mount(host_path=str(path), container_path="/x"))["Source"]
    return found


def test_a_plain_mount(tmp_path: Path) -> None:
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
def test_container_paths_have_one_spelling(path: str, expected: str) -> None:
    assert container_path(pb.Mount(container_path=path)) == expected


@pytest.mark.parametrize(
    ("propagation", "expected"),
    [(pb.PROPAGATION_HOST_TO_CONTAINER, "rslave"), (pb.PROPAGATION_BIDIRECTIONAL, "rshared")],
)
def test_propagation(
    propagation: pb.MountPropagation, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(module, "check_propagation", lambda path, **said: asked.append((path, said)))
    mount = made(pb.Mount(host_path=str(tmp_path), container_path="/x", propagation=propagation))
    assert mount["BindOptions"] == {"Propagation": expected}
    assert asked == [(tmp_path, {"propagation": propagation, "field": "config.mounts[0]"})]


def ensure(mount: pb.Mount, docker: dict[str, Any]) -> None:
    ensure_host_paths([mount], [docker, module.bind("/own", "/etc/resolv.conf")])


def test_a_missing_host_path_is_made_when_all_is_known_good(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mount = pb.Mount(host_path=str(tmp_path / "link/below/it"), container_path="/x")

    docker = made(mount)

    assert docker["Source"] == str(tmp_path / "real/below/it")
    assert not (tmp_path / "real/below").exists()
    ensure(mount, docker)
    assert (tmp_path / "real/below/it").is_dir()


def test_what_keeps_a_host_path_from_being_made_is_named(tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path / "new/below"), container_path="/x")
    docker = made(mount)
    (tmp_path / "new").touch()

    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[0\]\.host_path {tmp_path}/new/below: not a dir"):
        ensure(mount, docker)


def test_an_image_has_no_host_path(tmp_path: Path) -> None:
    image = pb.Mount(container_path="/x", image=pb.ImageSpec(image="x"))
    ensure(image, {"Type": "image", "Source": str(tmp_path / "new")})
    assert not (tmp_path / "new").exists()


def test_parents_are_those_of_the_file_system(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    assert source(tmp_path / "link/../new") == str(tmp_path / "a/new")


def test_whatever_is_there_can_be_mounted(tmp_path: Path) -> None:
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
def test_a_host_path_that_cannot_be_used_is_named(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FailedPrecondition, match=rf"config\.mounts\[0\]\.host_path .*/{path}: {message}"):
        source(tmp_path / path)
    assert sorted(tmp_path.rglob("*")) == before


def test_read_only_goes_with_the_rest(tmp_path: Path) -> None:
    mount = made(pb.Mount(host_path=str(tmp_path), container_path="/x", readonly=True))
    assert (mount["ReadOnly"], mount["BindOptions"]) == (True, {"ReadOnlyNonRecursive": True})
    mount = made(
        pb.Mount(host_path=str(tmp_path), container_path="/x", readonly=True, recursive_read_only=True), recursive=True
    )
    assert (mount["ReadOnly"], mount["BindOptions"]) == (True, {"ReadOnlyForceRecursive": True})


@pytest.mark.parametrize("field", ["uidMappings", "gidMappings"])
def test_id_mapped_mounts_are_refused(field: str, tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path / "new"), container_path="/x", **{field: [pb.IDMapping(length=1)]})  # type: ignore[arg-type]
    with pytest.raises(Unsupported, match=rf"config\.mounts\[0\]\.{field}"):
        made(mount)
    assert not (tmp_path / "new").exists()


def test_what_is_mounted_is_what_is_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = []
    monkeypatch.setattr(module, "relabel", lambda path, **said: labelled.append((path, said)))
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to("one")
    asked = [
        pb.Mount(host_path=str(tmp_path), container_path="/a"),
        pb.Mount(host_path=str(tmp_path / "link"), container_path="/b", selinux_relabel=True),
        pb.Mount(container_path="/c", image=pb.ImageSpec(image="x"), selinux_relabel=True),
    ]
    docker = [*(made(mount) for mount in asked[:2]), {"Type": "image", "Source": "sha256:1"}]
    (tmp_path / "link").unlink()
    relabel_mounts(asked, [*docker, module.bind("/own", "/etc/resolv.conf")], label="l")
    assert labelled == [(tmp_path / "one", {"label": "l", "field": "config.mounts[1]"})]
