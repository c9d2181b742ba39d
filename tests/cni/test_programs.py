import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.cni import executable, watch
from shim.cni.conf import read_directory
from shim.cni.network import Plugins
from shim.cni.programs import finding_by
from shim.cni.watch import ConfDirectory
from shim.domain.errors import DeadlineExceeded, FailedPrecondition
from shim.hostfs.client import HostFs
from tests.cni.fake_plugins import FakePlugins


@pytest.fixture
def host_fs() -> Iterator[HostFs]:
    """A helper process that ends with the test, and with it what hangs in it."""
    host_fs = HostFs()
    host_fs.call(os.getpid, path="p", what="start")
    yield host_fs
    host_fs.stop()


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that does not answer, as on a dead volume."""
    gate, directory = tmp_path / "gate", tmp_path / "dead"
    os.mkfifo(gate)
    monkeypatch.setattr("shim.cni.programs.is_executable", Hanging(gate, directory))
    return directory


class Hanging:
    """Does not return for what is in one directory."""

    def __init__(self, gate: Path, directory: Path) -> None:
        self.gate, self.directory = gate, directory

    def __call__(self, path: Path) -> bool:
        if path.parent == self.directory:
            self.gate.read_bytes()
        return executable.is_executable(path)


def networks_in(tmp_path: Path, host_fs: HostFs, *bin_dirs: Path) -> ConfDirectory:
    conf = tmp_path / "net.d"
    conf.mkdir()
    (conf / "10.conf").write_text('{"cniVersion": "1.0.0", "name": "n", "type": "bridge"}')
    return ConfDirectory(conf, bin_dirs=bin_dirs, find=finding_by(host_fs, seconds=1.0))


def test_plugins_are_found_in_the_order_of_directories(host_fs: HostFs, tmp_path: Path) -> None:
    first, second = FakePlugins(tmp_path / "first"), FakePlugins(tmp_path / "second")
    second.write("bridge")
    find = finding_by(host_fs)
    bin_dirs = [first.bin_dir, tmp_path / "none", second.bin_dir]
    assert find("bridge", bin_dirs) == second.bin_dir / "bridge"
    first.write("bridge")
    assert find("bridge", bin_dirs) == first.bin_dir / "bridge"
    assert find("other", bin_dirs) is None


def test_a_directory_that_hangs_is_a_network_that_is_not_ready_and_named(
    host_fs: HostFs, tmp_path: Path, dead: Path
) -> None:
    networks = networks_in(tmp_path, host_fs, dead)
    networks.start()
    try:
        began = time.monotonic()
        found = networks.status()
        assert time.monotonic() - began < 5
        assert not found.ready
        assert str(dead) in found.message
        with pytest.raises(FailedPrecondition, match=f"find cni plugin bridge: {dead} has not answered for"):
            networks.chosen()
    finally:
        networks.stop()


def test_a_directory_that_is_slow_for_a_moment_leaves_the_network_ready(
    host_fs: HostFs, tmp_path: Path, dead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.1)
    networks = networks_in(tmp_path, host_fs, dead)
    networks._listing = read_directory(tmp_path / "net.d")
    networks._known = watch.NetworkStatus(ready=True, reason="", message="network n"), None
    networks._known_at = time.monotonic()
    assert networks.status().ready
    networks._known_at -= watch.TRUSTED_SECONDS
    assert not networks.status().ready


def test_a_plugin_whose_directory_hangs_is_not_run(host_fs: HostFs, tmp_path: Path, dead: Path) -> None:
    plugins = Plugins(bin_dirs=[dead], cache_dir=tmp_path, timeout=10, find=finding_by(host_fs, seconds=1.0))
    with pytest.raises(DeadlineExceeded, match=f"find cni plugin bridge: {dead} has not answered"):
        plugins._find("bridge", [dead])
