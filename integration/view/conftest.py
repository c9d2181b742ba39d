"""A server whose Docker can be made to hang, and pods of one test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.conftest import Images, NodeDirs, Served, serving
from integration.networks import bridge, conflist
from integration.node.box import HOME
from integration.node.engine import Engine, remove_link
from integration.pods.kubelet import Kubelet, unused_name
from integration.view.proxy import DockerProxy

BRIDGE = "view0"


@pytest.fixture
def proxy(engine: Engine) -> Iterator[DockerProxy]:
    """Stand between the engine and its clients."""
    made = DockerProxy(socket_path("proxy"), upstream=engine.socket)
    yield made
    made.close()


@pytest.fixture
def proxied(engine: Engine, images: Images, node_dirs: NodeDirs, proxy: DockerProxy) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run a server behind the proxy, with a pod network of its own."""
    network = bridge(node_dirs.cni_leases, subnets=["10.87.0.0/16"]) | {"bridge": BRIDGE}
    (node_dirs.cni_conf / "10-view.conflist").write_text(conflist(network, name="view"))
    with serving(engine, node_dirs, docker_endpoint=proxy.url) as made:
        yield made
    remove_link(BRIDGE)


@pytest.fixture
def kubelet(proxied: Served, images: Images) -> Kubelet:
    """Make pods on that server, which removes them at its end."""
    return Kubelet(proxied.cri, images.busybox)


def socket_path(name: str) -> Path:
    """A path short enough for a socket."""
    return HOME / "sockets" / f"{unused_name(name)}.sock"
