"""A host and a pod, each a network namespace of its own, so that no example meets another test's bridge or rules."""

from collections.abc import Iterator

import pytest

from integration.conftest import NodeDirs
from integration.node.place import Place, made_place
from shim.cni.network import Plugins

HOST_ADDRESSES = ("192.168.10.2/24", "fd00:192:168::2/64")


@pytest.fixture
def host(node_dirs: NodeDirs) -> Iterator[Place]:
    """Provide a host with loopback and one uplink, `eth0`; its peer is `wire`."""
    with made_place(node_dirs.netns / "host") as place:
        place.run("ip link set lo up")
        place.run("ip link add eth0 type veth peer name wire")
        for address in HOST_ADDRESSES:
            place.run(f"ip address add {address} dev eth0 {'nodad' if ':' in address else ''}")
        place.run("ip link set eth0 up")
        place.run("ip link set wire up")
        yield place


@pytest.fixture
def pod(node_dirs: NodeDirs) -> Iterator[Place]:
    """Provide an empty network namespace with its loopback up."""
    with made_place(node_dirs.netns / "pod") as place:
        place.run("ip link set lo up")
        yield place


@pytest.fixture
def plugins(node_dirs: NodeDirs) -> Plugins:
    """Debian's plugins, with a cache of the test's own."""
    return Plugins(bin_dirs=[node_dirs.cni_bin], cache_dir=node_dirs.cni_cache, timeout=60)
