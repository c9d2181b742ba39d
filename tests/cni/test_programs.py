import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shim.base import deadline
from shim.cni import host_files, watch
from shim.cni.conf import NetworkConfig, read_directory
from shim.cni.plugins import Plugins
from shim.cni.programs import find_plugins_via
from shim.cni.watch import NOT_READY, ConfDirectory
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, Unavailable
from shim.hostfs.client import HostFs
from tests.cni.fake_plugins import FakePlugins
from tests.waits import wait_until

T = TypeVar("T")


@pytest.fixture
def host_fs() -> Iterator[HostFs]:
    """A helper process that ends with the test, including its hung calls."""
    host_fs = HostFs()
    host_fs.call(os.getpid, path="p", what="start")
    yield host_fs
    host_fs.stop()


@pytest.fixture
def dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that does not answer, as on a dead volume: searching it hangs."""
    gate, directory = tmp_path / "gate", tmp_path / "dead"
    os.mkfifo(gate)
    monkeypatch.setattr("shim.cni.programs.executables", Hanging(gate, directory))
    return directory


class Hanging:
    """Hang for a single directory."""

    def __init__(self, gate: Path, directory: Path) -> None:
        self.gate, self.directory = gate, directory

    def __call__(self, directory: Path, names: Sequence[str]) -> list[str]:
        if directory == self.directory:
            self.gate.read_bytes()
        return host_files.executables(directory, names)


def networks_in(tmp_path: Path, host_fs: HostFs, *bin_dirs: Path) -> ConfDirectory:
    conf = tmp_path / "net.d"
    conf.mkdir()
    (conf / "10.conf").write_text('{"cniVersion": "1.0.0", "name": "n", "type": "bridge"}')
    return ConfDirectory(conf, bin_dirs=bin_dirs, find=find_plugins_via(host_fs, seconds=1.0))


def test_plugins_are_found_in_the_order_of_directories(host_fs: HostFs, tmp_path: Path) -> None:
    first, second = FakePlugins(tmp_path / "first"), FakePlugins(tmp_path / "second")
    second.write("bridge")
    find = find_plugins_via(host_fs)
    bin_dirs = [first.bin_dir, tmp_path / "none", second.bin_dir]
    assert find(["bridge"], bin_dirs) == {"bridge": second.bin_dir / "bridge"}
    first.write("bridge")
    second.write("portmap")
    found = {"bridge": first.bin_dir / "bridge", "portmap": second.bin_dir / "portmap"}
    assert find(["portmap", "other", "bridge", "portmap"], bin_dirs) == found


def test_a_hung_plugin_directory_makes_the_network_not_ready_and_is_named(
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


def test_a_briefly_slow_plugin_directory_leaves_the_network_ready(
    host_fs: HostFs, tmp_path: Path, dead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STATUS_SECONDS", 0.1)
    networks = networks_in(tmp_path, host_fs, dead)
    networks._listing = read_directory(tmp_path / "net.d")
    networks._known = watch.NetworkStatus(ready=True, reason="", message="network n"), None
    networks._known_at = time.monotonic()
    assert networks.status().ready
    networks._known_at -= watch.TRUSTED_SECONDS
    assert not networks.status().ready


def test_a_plugin_in_a_hung_directory_is_not_run(host_fs: HostFs, tmp_path: Path, dead: Path) -> None:
    plugins = Plugins(bin_dirs=[dead], cache_dir=tmp_path, timeout=10, find=find_plugins_via(host_fs, seconds=1.0))
    with pytest.raises(DeadlineExceeded, match=f"find cni plugin bridge: {dead} has not answered"):
        plugins._find(["bridge"], [dead])


class Stalled:
    """A directory whose calls hang until it is released, as on a dead volume."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.released = threading.Event()
        self.waited_for = threading.Event()

    def call(self, function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        """Wait as `HostFs.call_until_answered` does."""
        assert path == str(self.directory)
        with deadline.current().on_cancel(self.released.set):
            self.waited_for.set()
            self.released.wait()
        deadline.current().check(what)
        return function(*arguments)

    def probe(self, function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        """Wait as `HostFs.call` does."""
        assert path == str(self.directory)
        if not self.released.wait(deadline.current().remaining()):
            deadline.current().check(what)
        return function(*arguments)


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[tuple[ConfDirectory, Stalled]]:
    conf = tmp_path / "net.d"
    conf.mkdir()
    (conf / "10.conf").write_text('{"cniVersion": "1.0.0", "name": "n", "type": "bridge"}')
    plugins = FakePlugins(tmp_path / "bin")
    plugins.write("bridge")
    stall = Stalled(conf)
    networks = ConfDirectory(conf, bin_dirs=[plugins.bin_dir], call=stall.call, probe=stall.probe)
    yield networks, stall
    networks.stop()


def test_a_configuration_directory_that_hangs_at_start_is_named_and_read_later(
    stalled: tuple[ConfDirectory, Stalled], monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, stall = stalled
    monkeypatch.setattr(watch, "START_SECONDS", 0.1)
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.2)
    networks.start()
    assert stall.waited_for.is_set()
    hangs = f"no pod network: cni configuration directory {stall.directory} does not answer; is the volume behind it"
    found = networks.status()
    assert (found.ready, found.reason) == (False, NOT_READY)
    assert found.message.startswith(hangs)
    with pytest.raises(FailedPrecondition, match=hangs):
        networks.chosen()

    stall.released.set()

    wait_until(lambda: networks.status().ready)
    assert networks.chosen().name == "n"


def test_pods_wait_for_the_first_reading(
    stalled: tuple[ConfDirectory, Stalled], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy node the start of the helper process takes seconds."""
    networks, stall = stalled
    monkeypatch.setattr(watch, "START_SECONDS", 0.1)
    networks.start()
    later = threading.Timer(0.5, stall.released.set)
    later.start()

    assert networks.chosen().name == "n"
    later.join()


def test_a_cancelled_client_does_not_wait_for_the_first_reading(
    stalled: tuple[ConfDirectory, Stalled], monkeypatch: pytest.MonkeyPatch
) -> None:
    networks, _ = stalled
    monkeypatch.setattr(watch, "START_SECONDS", 0.1)
    monkeypatch.setattr(watch, "FIRST_SECONDS", 1000.0)
    networks.start()
    scope = deadline.Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled):
        networks.chosen()


def test_a_configuration_directory_that_hangs_later_keeps_its_network_and_is_named(
    stalled: tuple[ConfDirectory, Stalled], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TRUSTED_SECONDS", 0.0)
    networks, stall = stalled
    stall.released.set()
    networks.start()
    assert networks.status().message == f"network n of {stall.directory}/10.conf"

    stall.released.clear()
    (stall.directory / "05.conf").write_text('{"cniVersion": "1.0.0", "name": "new", "type": "bridge"}')

    found = networks.status()
    assert found.ready
    assert f"; {stall.directory} does not answer; is the volume behind it alive?" in found.message
    assert networks.chosen().name == "n"
    stall.released.set()
    wait_until(lambda: networks.chosen().name == "new")
    assert networks.status().message == f"network new of {stall.directory}/05.conf"


def test_stop_does_not_wait_for_a_hung_configuration_directory(stalled: tuple[ConfDirectory, Stalled]) -> None:
    networks, stall = stalled
    networks.start()
    assert stall.waited_for.is_set()

    networks.stop()

    assert "cni-watch" not in [thread.name for thread in threading.enumerate()]


def test_reading_is_retried_after_a_failure_of_the_helper_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "RETRY_SECONDS", 0.05)
    left = [Unavailable("the helper process for host paths died")] * 3

    def call(function: Callable[..., T], *arguments: Any, path: str, what: str) -> T:
        if left:
            raise left.pop()
        return function(*arguments)

    networks = ConfDirectory(tmp_path, bin_dirs=[], call=call)
    networks.start()
    try:
        wait_until(lambda: "holds no .conflist" in networks.status().message)
    finally:
        networks.stop()


def test_a_large_directory_is_read_by_the_helper_process_in_parts(host_fs: HostFs, tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number:03}-{'x' * 240}.conf").write_text("{}")
    large = '{"cniVersion": "1.0.0", "name": "large", "type": "bridge", "x": "%s"}' % ("y" * 300_000)
    (tmp_path / "zz.conf").write_text(large)

    listing = read_directory(tmp_path, call=host_fs.call_until_answered)

    assert listing == read_directory(tmp_path)
    assert len(listing.entries) == 601
    assert isinstance(listing.entries[-1], NetworkConfig)
