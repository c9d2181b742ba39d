"""Pods and containers of one test, removed with it."""

from collections.abc import Iterator

import pytest

from integration.conftest import Images, Served
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
