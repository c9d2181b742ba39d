"""Queries of statistics."""

from collections.abc import Callable

from integration.conftest import Served
from integration.pods.kubelet import Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.stats_cache import INTERVAL

MIB = 1 << 20


def stats(served: Served, container_id: str) -> pb.ContainerStats:
    """Return the statistics of a container, which the server reads now."""
    request = pb.ContainerStatsRequest(container_id=container_id)
    return served.cri.runtime.ContainerStats(request).stats


def pod_stats(served: Served, pod: Pod) -> pb.PodSandboxStats:
    """Return the statistics of a pod, which the server reads now."""
    return served.cri.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id=pod.id)).stats


def listed(served: Served) -> dict[str, pb.ContainerStats]:
    """Return the statistics of all containers, by id."""
    answer = served.cri.runtime.ListContainerStats(pb.ListContainerStatsRequest())
    return {found.attributes.id: found for found in answer.stats}


def pods_listed(served: Served) -> dict[str, pb.PodSandboxStats]:
    """Return the statistics of all pods, by id."""
    answer = served.cri.runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest())
    return {found.attributes.id: found for found in answer.stats}


def metrics(served: Served, pod: Pod) -> pb.PodSandboxMetrics:
    """List the metrics of all pods, and return this pod's."""
    answer = served.cri.runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest())
    return next(each for each in answer.pod_metrics if each.pod_sandbox_id == pod.id)


def wait_read(cpu: Callable[[], pb.CpuUsage], *, after: int = 0) -> pb.CpuUsage:
    """Wait for an answer read later than `after` (ns since the epoch), by a background pass or for this list."""

    def newer() -> pb.CpuUsage | None:
        found = cpu()
        return found if found.timestamp > after else None

    found = wait_until(newer, seconds=4 * INTERVAL)
    assert found is not None
    return found


def wait_file(served: Served, container_id: str, path: str) -> None:
    """Wait until a container has created a file."""
    wait_until(lambda: served.cri.exec(container_id, "test", "-e", path).exit_code == 0, seconds=60)
