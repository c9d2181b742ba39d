"""Pods with a control group of their own, as a kubelet makes them; removed with the test."""

from collections.abc import Callable, Iterator

import pytest

from integration.conftest import Images, Served
from integration.node.box import Node
from integration.pods.kubelet import Kubelet, Pod, unused_name
from shim.api.v1 import api_pb2 as pb


@pytest.fixture
def kubelet(served: Served, images: Images) -> Iterator[Kubelet]:
    """Make pods on the shared server; they are removed at the end of the test."""
    made = Kubelet(served.cri, images.busybox)
    yield made
    made.remove_all()


@pytest.fixture
def own_pod(kubelet: Kubelet, node: Node) -> Callable[[], Pod]:
    """Give a maker of pods with a group of their own."""

    def make() -> Pod:
        parent = f"{node.cgroup_parent.rstrip('/')}/{unused_name('pod')}"
        return kubelet.pod(linux=pb.LinuxPodSandboxConfig(cgroup_parent=parent))

    return make
