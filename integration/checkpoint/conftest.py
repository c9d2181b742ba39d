"""A server that finds the criu of the tests, and its pods."""

import os
from collections.abc import Iterator

import pytest

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.networks import BRIDGE, bridge, conflist
from integration.node.criu import Criu, criu_in
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node, new_home
from integration.pods.kubelet import Kubelet
from integration.server import PROGRAM


@pytest.fixture(scope="session")
def shared_criu(node: Node) -> Criu:
    """Create the script for all tests."""
    if node.criu is None:
        pytest.skip(node.criu_missing)
    return criu_in(new_home("criu"), node.criu)


@pytest.fixture
def criu(shared_criu: Criu) -> Iterator[Criu]:
    """Let a test replace the script."""
    yield shared_criu
    shared_criu.install()


@pytest.fixture(scope="module")
def served(engine: Engine, images: Images, node: Node, shared_criu: Criu) -> Iterator[Served]:  # noqa: ARG001
    """Run a server that finds criu."""
    dirs = make_node_dirs(node, new_home("checkpoints"))
    (dirs.cni_conf / "10-pods.conflist").write_text(conflist(bridge(dirs.cni_leases)))
    path = f"PATH={shared_criu.script.parent}{os.pathsep}{os.environ['PATH']}"
    with own_link(BRIDGE), serving(engine, dirs, ("env", path, *PROGRAM)) as made:
        before = made.snapshot()
        yield made
        made.revive()
        made.clear()
        assert made.snapshot() == before


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    """Yield a kubelet whose pods are removed at the end of the test."""
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()
