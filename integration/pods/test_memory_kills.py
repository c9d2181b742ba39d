"""A container that the kernel has killed for lack of memory has its reason, also where Docker has missed the kill."""

import os
from collections.abc import Iterator

import pytest

from integration.conftest import Images
from integration.pods.faulty_node import FaultyNode
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.cgroup.kernel_log import KERNEL_LOG

_MISSED = (b'"OOMKilled":true', b'"OOMKilled":null')
"""The flag in Docker's answers, and as if it had missed the kill: what is null counts as not set."""
_HOG = 'x=$(head -c 65000000 /dev/zero | tr "\\0" x)'
"""Holds 64 MB, so that it is killed."""


def _kernel_log_is_readable() -> bool:
    try:
        os.close(os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _kernel_log_is_readable(), reason="the kernel's log cannot be read here")


@pytest.fixture
def kubelet(faulty_node: FaultyNode, images: Images) -> Iterator[Kubelet]:
    made = Kubelet(faulty_node.cri, images.busybox)
    yield made
    made.remove_all()


def _started(kubelet: Kubelet, pod: Pod, script: str) -> str:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=16 << 20)
    return kubelet.started(pod, "sh", "-c", script, linux=pb.LinuxContainerConfig(resources=limit))


def _ended(kubelet: Kubelet, container_id: str) -> tuple[int, str]:
    """Wait for the end of a container; return its exit code and reason."""
    wait_until(lambda: kubelet.cri.container_status(container_id).state == pb.CONTAINER_EXITED)
    status = kubelet.cri.container_status(container_id)
    return status.exit_code, status.reason


def test_a_kill_that_docker_misses_has_its_reason(faulty_node: FaultyNode, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    with faulty_node.proxy.altered(*_MISSED):
        container = _started(kubelet, pod, f"{_HOG}; exit 0")
        assert _ended(kubelet, container) == (137, "OOMKilled")
        assert kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY

        faulty_node.served.server.stop()
        faulty_node.served.restart()
        assert _ended(kubelet, container) == (137, "OOMKilled")


def test_a_container_that_goes_on_without_the_process_ends_as_it_ends(kubelet: Kubelet) -> None:
    # The kernel may kill more than one process until there is memory again: these before the first shell.
    hog = f"echo 1000 >/proc/self/oom_score_adj; {_HOG}"
    container = _started(kubelet, kubelet.pod(), f"sh -c '{hog}; exit 0'; exit 3")
    assert _ended(kubelet, container) == (3, "Error")


def test_a_container_that_is_killed_otherwise_was_not_short_of_memory(kubelet: Kubelet) -> None:
    container = _started(kubelet, kubelet.pod(), "sleep 3600")
    kubelet.cri.stop_container(container, timeout=0)
    assert _ended(kubelet, container) == (137, "Error")
