"""What the tests ask the server, and loads whose size is known."""

from collections.abc import Callable

from integration.conftest import Served
from integration.pods.kubelet import Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.stats_cache import INTERVAL

MIB = 1 << 20


def stats(served: Served, container_id: str) -> pb.ContainerStats:
    """Ask for one container, which is read then."""
    request = pb.ContainerStatsRequest(container_id=container_id)
    return served.cri.runtime.ContainerStats(request).stats


def pod_stats(served: Served, pod: Pod) -> pb.PodSandboxStats:
    """Ask for one pod, which is read then."""
    return served.cri.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id=pod.id)).stats


def listed(served: Served) -> dict[str, pb.ContainerStats]:
    """Ask for all containers, by id."""
    answer = served.cri.runtime.ListContainerStats(pb.ListContainerStatsRequest())
    return {found.attributes.id: found for found in answer.stats}


def pods_listed(served: Served) -> dict[str, pb.PodSandboxStats]:
    """Ask for all pods, by id."""
    answer = served.cri.runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest())
    return {found.attributes.id: found for found in answer.stats}


def metrics(served: Served, pod: Pod) -> pb.PodSandboxMetrics:
    """Ask for the metrics of all pods, and give those of one."""
    answer = served.cri.runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest())
    return next(each for each in answer.pod_metrics if each.pod_sandbox_id == pod.id)


def wait_pass(cpu: Callable[[], pb.CpuUsage], *, after: int = 0) -> pb.CpuUsage:
    """Wait for what a background pass read, later than `after` (ns since the epoch).

    Lists give that until the next one; as long as there is none they read for themselves, each at another time.
    """

    def kept() -> pb.CpuUsage | None:
        first, second = cpu(), cpu()
        return second if first.timestamp == second.timestamp > after else None

    found = wait_until(kept, seconds=4 * INTERVAL)
    assert found is not None
    return found


def wait_file(served: Served, container_id: str, path: str) -> None:
    """Wait until a container has made a file."""
    wait_until(lambda: served.cri.exec(container_id, "test", "-e", path).exit_code == 0, seconds=60)
