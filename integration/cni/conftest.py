"""A host and a pod, each a network namespace of its own, so that no example meets another test's bridge or rules."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from integration.conftest import NodeDirs
from integration.node.mounts import unmount_all
from shim.cni.network import Plugins
from shim.netns.enter import in_netns

T = TypeVar("T")

HOST_ADDRESSES = ("192.168.10.2/24", "fd00:192:168::2/64")


@dataclass(frozen=True, slots=True)
class Place:
    """One network namespace."""

    path: Path

    def run(self, command: str) -> str:
        """Run a command in it and return what it prints."""
        argv = ["nsenter", f"--net={self.path}", *command.split()]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout

    def call(self, action: Callable[[], T]) -> T:
        """Call from a thread in it; sockets and children made there stay there."""
        return in_netns(self.path, action)


@pytest.fixture
def host(node_dirs: NodeDirs) -> Iterator[Place]:
    """A host with loopback and one uplink, `eth0`; its peer is `wire`."""
    for place in _place(node_dirs.netns / "host"):
        place.run("ip link set lo up")
        place.run("ip link add eth0 type veth peer name wire")
        for address in HOST_ADDRESSES:
            place.run(f"ip address add {address} dev eth0 {'nodad' if ':' in address else ''}")
        place.run("ip link set eth0 up")
        place.run("ip link set wire up")
        yield place


@pytest.fixture
def pod(node_dirs: NodeDirs) -> Iterator[Place]:
    """An empty network namespace with its loopback up."""
    for place in _place(node_dirs.netns / "pod"):
        place.run("ip link set lo up")
        yield place


@pytest.fixture
def plugins(node_dirs: NodeDirs) -> Plugins:
    """Debian's plugins, with a cache of the test's own."""
    return Plugins(bin_dirs=[node_dirs.cni_bin], cache_dir=node_dirs.cni_cache, timeout=60)


def _place(path: Path) -> Iterator[Place]:
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    try:
        yield Place(path)
    finally:
        unmount_all(path)
        path.unlink()
