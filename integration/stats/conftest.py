"""Fixtures: pods with a pod cgroup, as a kubelet makes them, and a disk; removed with the test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.conftest import Served
from integration.pods.conftest import kubelet
from integration.pods.kubelet import Kubelet, Pod, unused_name
from integration.stats.kernel_reference import Disk, mounted_disk
from integration.stats.queries import MIB
from shim.api.v1 import api_pb2 as pb

__all__ = ("disk", "kubelet", "own_pod")


@pytest.fixture
def own_pod(kubelet: Kubelet, served: Served) -> Callable[[], Pod]:
    """Provide a maker of pods that have a pod cgroup."""

    def make() -> Pod:
        parent = served.engine.cgroup_below(unused_name("pod").replace("-", "_"))
        return kubelet.pod(linux=pb.LinuxPodSandboxConfig(cgroup_parent=parent))

    return make


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Mount a disk that only the test reads and writes."""
    with mounted_disk(tmp_path, size=128 * MIB) as made:
        yield made
