import os
import socket
from pathlib import Path

import pytest

from shim.domain.errors import FailedPrecondition
from shim.hostfs import host_devices as module
from shim.hostfs.host_devices import inspect_device


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A file of each kind that a device's path may lead to."""
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


def inspected(host_path: object) -> str:
    return inspect_device(str(host_path), field="config.devices[1]")


def test_device_is_resolved(places: Path) -> None:
    assert inspected("/dev/null") == "/dev/null"
    assert inspected(places / "null") == "/dev/null"


def test_directory_needs_a_device_below(places: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.mknod(places / "nodes/below/null", 0o20600, os.makedev(1, 3))
    assert inspected(places / "nodes") == str(places / "nodes")


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
def test_other_files_are_refused(places: Path, name: str, message: str) -> None:
    with pytest.raises(FailedPrecondition, match=rf"config\.devices\[1\]\.host_path {places / name}:? {message}"):
        inspected(places / name)


@pytest.mark.parametrize("path", ["/", "/..", "/proc/self/root"])
def test_root_directory_is_refused(path: str) -> None:
    with pytest.raises(FailedPrecondition, match=rf"config\.devices\[1\]\.host_path {path} "):
        inspected(path)


def test_directory_walk_is_bounded(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENTRIES", 3)
    with pytest.raises(FailedPrecondition, match="holds more than 3 files; name the devices"):
        inspected(places)
