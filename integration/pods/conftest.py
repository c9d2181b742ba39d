"""Pods and containers that a test makes, removed at its end."""

from collections.abc import Iterator

import pytest

from integration.conftest import Images, Served, make_node_dirs
from integration.node.engine import Engine
from integration.node.images import Image
from integration.node.isolation import Node, new_home
from integration.pods.faulty_node import FaultyNode, run_faulty_node
from integration.pods.kubelet import Kubelet, Pod


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    """Make pods on the shared server; they are removed at the end of the test."""
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()


@pytest.fixture(scope="module")
def pod(served: Served, images: Images) -> Iterator[Pod]:
    """Run a pod that the tests of a file share, for their containers."""
    made = Kubelet(served.cri, images.busybox)
    yield made.pod()
    made.remove_all()


@pytest.fixture(scope="module")
def faulty_node(engine: Engine, images: Images, node: Node, pause_image: Image) -> Iterator[FaultyNode]:
    """Run a separate server whose surroundings can fail."""
    assert images.pause == pause_image.reference
    with run_faulty_node(engine, make_node_dirs(node, new_home("faulty")), pause_image) as made:
        yield made
