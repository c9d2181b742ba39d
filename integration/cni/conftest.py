"""A host and a pod in fresh network namespaces, so that no example sees the bridge or rules of another test."""

from collections.abc import Iterator

import pytest

from integration.conftest import NodeDirs
from integration.node.netns import Netns, new_netns
from shim.cni.plugins import Plugins

HOST_ADDRESSES = ("192.168.10.2/24", "fd00:192:168::2/64")


@pytest.fixture
def host(node_dirs: NodeDirs) -> Iterator[Netns]:
    """Provide a host with loopback and one uplink, `eth0`; its peer is `outer`."""
    with new_netns(node_dirs.netns / "host") as netns:
        netns.run("ip link set lo up")
        netns.run("ip link add eth0 type veth peer name outer")
        for address in HOST_ADDRESSES:
            netns.run(f"ip address add {address} dev eth0 {'nodad' if ':' in address else ''}")
        netns.run("ip link set eth0 up")
        netns.run("ip link set outer up")
        yield netns


@pytest.fixture
def pod(node_dirs: NodeDirs) -> Iterator[Netns]:
    """Provide an empty network namespace with its loopback up."""
    with new_netns(node_dirs.netns / "pod") as netns:
        netns.run("ip link set lo up")
        yield netns


@pytest.fixture
def plugins(node_dirs: NodeDirs) -> Plugins:
    """Debian's plugins, with a cache for this test."""
    return Plugins(bin_dirs=[node_dirs.cni_bin], cache_dir=node_dirs.cni_cache, timeout=60)
