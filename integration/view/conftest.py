"""Fixtures: a server behind a proxy of Docker that can hang, and pods."""

from collections.abc import Iterator

import pytest

from integration.conftest import Images, NodeDirs, Served, make_node_dirs, serving
from integration.networks import bridge, conflist
from integration.node.engine import Engine, own_link
from integration.node.isolation import HOME, Node, new_home
from integration.pods.kubelet import Kubelet, unused_name
from integration.view.proxy import DockerProxy

BRIDGE = "view0"


@pytest.fixture(scope="module")
def proxy(engine: Engine) -> Iterator[DockerProxy]:
    """Run a proxy in front of the engine."""
    sockets = HOME / "sockets"  # short, because paths of sockets are limited
    sockets.mkdir(exist_ok=True)
    made = DockerProxy(sockets / f"{unused_name('proxy')}.sock", upstream=engine.socket)
    yield made
    made.close()


@pytest.fixture(scope="module")
def proxied(engine: Engine, images: Images, node: Node, proxy: DockerProxy) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """Run a server behind the proxy; at its end leftovers of pods are an error."""
    dirs = make_node_dirs(node, new_home("view"))
    configure_network(dirs)
    with own_link(BRIDGE), serving(engine, dirs, docker_endpoint=proxy.url) as made:
        before = made.snapshot()
        yield made
        made.revive()
        made.clear()
        assert before.added(made.snapshot()) == []


@pytest.fixture
def kubelet(proxied: Served, images: Images) -> Iterator[Kubelet]:
    """Make pods on the proxied server; they are removed at the end of the test."""
    made = Kubelet(proxied.cri, images.busybox)
    yield made
    made.remove_all()


def configure_network(dirs: NodeDirs) -> None:
    """Configure a network that no other server uses."""
    plugin = bridge(dirs.cni_leases, subnets=["10.87.0.0/16"], link=BRIDGE)
    (dirs.cni_conf / "10-view.conflist").write_text(conflist(plugin, name="view"))
