"""Pods and containers of one test, removed with it."""

from collections.abc import Iterator

import pytest

from integration.conftest import Images, Served, make_node_dirs
from integration.node.box import Node, new_home
from integration.node.engine import Engine
from integration.node.images import Image
from integration.pods.frail import Frail, frail_server
from integration.pods.kubelet import Kubelet, Pod


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    """Make pods on the shared server; they are removed at the end of the test."""
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()


@pytest.fixture(scope="module")
def pod(served: Served, images: Images) -> Iterator[Pod]:
    """One pod for all tests of a file that only need one around their containers."""
    made = Kubelet(served.cri, images.busybox)
    yield made.pod()
    made.remove_all()


@pytest.fixture(scope="session")
def frail(engine: Engine, images: Images, node: Node, pause_image: Image) -> Iterator[Frail]:
    """Run a server of its own whose surroundings can fail."""
    assert images.pause == pause_image.reference
    with frail_server(engine, make_node_dirs(node, new_home("frail")), pause_image) as made:
        yield made
