from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.mounts import docker_mount, recursive_read_only_supported
from shim.errors import FailedPrecondition, InvalidArgument


def made(mount: pb.Mount, *, api: tuple[int, int] = (1, 44), recursive: bool = False) -> dict[str, Any]:
    return docker_mount(mount, field="config.mounts[0]", api_version=api, recursive_read_only=recursive)


def test_a_plain_mount(tmp_path: Path) -> None:
    assert made(pb.Mount(host_path=str(tmp_path), container_path="data/../x")) == {
        "Type": "bind",
        "Source": str(tmp_path),
        "Target": "/x",
        "ReadOnly": False,
    }


@pytest.mark.parametrize(
    ("propagation", "expected"),
    [(pb.PROPAGATION_HOST_TO_CONTAINER, "rslave"), (pb.PROPAGATION_BIDIRECTIONAL, "rshared")],
)
def test_propagation(propagation: pb.MountPropagation, expected: str, tmp_path: Path) -> None:
    mount = made(pb.Mount(host_path=str(tmp_path), container_path="/x", propagation=propagation))
    assert mount["BindOptions"] == {"Propagation": expected}


def test_a_missing_host_path_is_made_and_a_link_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mount = made(pb.Mount(host_path=str(tmp_path / "link" / "below"), container_path="/x"))
    assert mount["Source"] == str(tmp_path / "real" / "below")
    assert (tmp_path / "real" / "below").is_dir()


def test_a_host_path_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FailedPrecondition, match=r"config\.mounts\[0\]\.host_path .*/file/below: Not a directory"):
        made(pb.Mount(host_path=str(tmp_path / "file" / "below"), container_path="/x"))


def test_read_only_is_not_recursive_unless_asked_for(tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path), container_path="/x", readonly=True)
    assert made(mount)["BindOptions"] == {"ReadOnlyNonRecursive": True}
    assert "BindOptions" not in made(mount, api=(1, 43))  # no such field then, and never recursive


def test_recursive_read_only(tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path), container_path="/x", readonly=True, recursive_read_only=True)
    assert made(mount, recursive=True)["BindOptions"] == {"ReadOnlyForceRecursive": True}
    with pytest.raises(FailedPrecondition, match=r"^RROUnsupported"):
        made(mount, recursive=False)
    with pytest.raises(FailedPrecondition, match=r"^RROUnsupported"):
        made(mount, api=(1, 43), recursive=True)


@pytest.mark.parametrize(
    "fields",
    [{"readonly": False}, {"readonly": True, "propagation": pb.PROPAGATION_BIDIRECTIONAL}],
    ids=["writable", "shared"],
)
def test_recursive_read_only_needs_a_private_read_only_mount(fields: dict[str, Any], tmp_path: Path) -> None:
    mount = pb.Mount(host_path=str(tmp_path), container_path="/x", recursive_read_only=True, **fields)
    with pytest.raises(InvalidArgument, match="recursive_read_only"):
        made(mount, recursive=True)


def test_what_a_runtime_can_is_read_from_its_features() -> None:
    features = {"org.opencontainers.runtime-spec.features": '{"mountOptions":["ro","rro"]}'}
    assert recursive_read_only_supported(features)
    assert not recursive_read_only_supported({"org.opencontainers.runtime-spec.features": '{"mountOptions":["ro"]}'})
    assert not recursive_read_only_supported(None)
