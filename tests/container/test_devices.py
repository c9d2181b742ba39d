import os
import socket
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container import devices as module
from shim.container.devices import docker_devices
from shim.errors import FailedPrecondition


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """One of everything that a device's path may lead to."""
    for directory in ("nodes/below", "empty", "elsewhere"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "elsewhere/null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    return tmp_path


def made(host_path: object, container_path: str = "", permissions: str = "") -> dict[str, str]:
    device = pb.Device(host_path=str(host_path), container_path=container_path, permissions=permissions)
    return docker_devices([device])[0]


def test_a_device_and_its_rights() -> None:
    assert made("/dev/null", "/dev/n", "r") == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/n",
        "CgroupPermissions": "r",
    }


def test_what_is_not_said_is_as_on_the_host() -> None:
    assert made("/dev/null") == {
        "PathOnHost": "/dev/null",
        "PathInContainer": "/dev/null",
        "CgroupPermissions": "rwm",
    }


def test_links_are_followed_and_paths_are_cleaned(places: Path) -> None:
    device = made(places / "null", "/dev/../dev//x/")
    assert (device["PathOnHost"], device["PathInContainer"]) == ("/dev/null", "/dev/x")
    assert made(places / "null")["PathInContainer"] == str(places / "null")


def test_a_directory_needs_a_device_somewhere_below(places: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.mknod(places / "nodes/below/null", 0o20600, os.makedev(1, 3))
    assert made(places / "nodes")["PathOnHost"] == str(places / "nodes")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "no such file or directory"),
        ("loop", "too many levels of symbolic links"),
        ("file/x", "not a directory"),
        ("file", "is neither a device nor a directory of devices"),
        ("fifo", "is neither a device nor a directory of devices"),
        ("socket", "is neither a device nor a directory of devices"),
        ("empty", "is a directory without a device"),
        ("elsewhere", "is a directory without a device"),
    ],
)
def test_what_is_no_device_is_refused(places: Path, name: str, message: str) -> None:
    devices = [pb.Device(host_path="/dev/null"), pb.Device(host_path=str(places / name))]
    with pytest.raises(FailedPrecondition, match=rf"config\.devices\[1\]\.host_path {places / name}:? {message}"):
        docker_devices(devices)


@pytest.mark.parametrize("path", ["/", "/..", "/proc/self/root"])
def test_the_whole_host_is_refused(path: str) -> None:
    with pytest.raises(FailedPrecondition, match=rf"config\.devices\[0\]\.host_path {path} "):
        made(path)


def test_a_directory_is_not_walked_without_end(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    with pytest.raises(FailedPrecondition, match="holds more than 3 files; name the devices"):
        made(places)
