"""A container that the kernel killed for lack of memory has reason OOMKilled, also if Docker missed the kill."""

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
"""The flag in Docker's answers, and a null in its place, which counts as not set: a kill that Docker missed."""
_HOG = 'x=$(head -c 65000000 /dev/zero | tr "\\0" x)'
"""Allocates 64 MB, so that the kernel kills it."""


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
    """Wait for the exit of a container; return its exit code and reason."""
    wait_until(lambda: kubelet.cri.container_status(container_id).state == pb.CONTAINER_EXITED)
    status = kubelet.cri.container_status(container_id)
    return status.exit_code, status.reason


def test_a_memory_kill_that_docker_misses_is_reported(faulty_node: FaultyNode, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    with faulty_node.proxy.altered(*_MISSED):
        container = _started(kubelet, pod, f"{_HOG}; exit 0")
        assert _ended(kubelet, container) == (137, "OOMKilled")
        assert kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY

        faulty_node.served.server.stop()
        faulty_node.served.restart()
        assert _ended(kubelet, container) == (137, "OOMKilled")


def test_a_container_that_survives_a_memory_kill_keeps_its_exit_reason(kubelet: Kubelet) -> None:
    # The kernel may kill several processes until memory is free: these come before the first shell.
    hog = f"echo 1000 >/proc/self/oom_score_adj; {_HOG}"
    container = _started(kubelet, kubelet.pod(), f"sh -c '{hog}; exit 0'; exit 3")
    assert _ended(kubelet, container) == (3, "Error")


def test_another_kill_is_not_reported_as_a_memory_kill(kubelet: Kubelet) -> None:
    container = _started(kubelet, kubelet.pod(), "sleep 3600")
    kubelet.cri.stop_container(container, timeout=0)
    assert _ended(kubelet, container) == (137, "Error")
