"""The fields and entries of statistics; `test_against_kernel.py` checks the values."""

import time
from collections.abc import Callable

import grpc
import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK
from integration.node.processes import group_files
from integration.pods.kubelet import Kubelet, Pod, failure
from integration.stats.kernel_reference import group_of
from integration.stats.queries import MIB, listed, pod_stats, pods_listed, stats
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.base.times import SECOND
from shim.stats_cache import INTERVAL


def test_available_memory_and_swap_follow_the_limit(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]
) -> None:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=64 * MIB)
    limited = stats(served, kubelet.started(own_pod(), linux=pb.LinuxContainerConfig(resources=limit)))

    assert limited.memory.available_bytes.value == 64 * MIB - limited.memory.working_set_bytes.value
    assert limited.swap.swap_usage_bytes.value == 0


def test_the_network_of_the_host_is_not_reported(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    kubelet.started(pod)

    assert not pod_stats(served, pod).linux.HasField("network")


def test_a_pod_without_a_pod_cgroup_has_the_sum_of_its_containers(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    containers = [kubelet.started(pod), kubelet.started(pod)]

    linux = pod_stats(served, pod).linux

    assert {found.attributes.id for found in linux.containers} == set(containers)
    assert linux.memory.usage_bytes.value >= sum(found.memory.usage_bytes.value for found in linux.containers)
    # For a moment runc's setup process still counts as a task of the container.
    assert wait_until(lambda: pod_stats(served, pod).linux.process.process_count.value == 3)


def test_lists_have_running_containers_and_apply_filters(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]
) -> None:
    first, second = own_pod(), own_pod()
    running = kubelet.started(first, labels={"role": "main"})
    other = kubelet.started(second)
    ended = kubelet.started(second)
    kubelet.created(second)
    served.cri.stop_container(ended)

    assert listed(served).keys() == {running, other}
    assert pods_listed(served).keys() == {first.id, second.id}
    runtime = served.cri.runtime
    wanted = pb.ContainerStatsFilter(pod_sandbox_id=first.id[:12], label_selector={"role": "main"})
    streamed = [
        found.attributes.id
        for part in runtime.StreamContainerStats(pb.StreamContainerStatsRequest(filter=wanted))
        for found in part.container_stats
    ]
    assert streamed == [running]
    of_pod = pb.StreamPodSandboxStatsRequest(filter=pb.PodSandboxStatsFilter(id=second.id))
    assert [
        found.attributes.id for part in runtime.StreamPodSandboxStats(of_pod) for found in part.pod_sandbox_stats
    ] == [second.id]
    assert stats(served, ended).memory.usage_bytes.value == 0


def test_prefetched_lists_are_recent(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    container = kubelet.started(pod)
    first = listed(served)[container].cpu.timestamp
    pods_listed(served)
    time.sleep(2 * INTERVAL)  # two passes

    found = listed(served)[container]

    assert first < found.cpu.timestamp
    assert abs(time.time_ns() - found.cpu.timestamp) < 2 * INTERVAL * SECOND
    assert found.cpu.HasField("usage_nano_cores")


def test_answers_a_second_apart_have_different_cpu_times(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]
) -> None:
    pod = own_pod()
    container = kubelet.started(pod)
    listed(served)
    pods_listed(served)
    time.sleep(2 * INTERVAL)  # so that lists are prefetched
    containers, pods = [], []
    for _ in range(12):
        containers.append(listed(served)[container].cpu.timestamp)
        pods.append(pods_listed(served)[pod.id].linux.cpu.timestamp)
        time.sleep(1)  # as crictl does

    assert containers == sorted(set(containers))
    assert pods == sorted(set(pods))


def test_files_of_control_groups_are_open_while_their_container_runs(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]
) -> None:
    pod = own_pod()
    container = kubelet.started(pod)
    group = group_of(served, container, "cpuacct").parent.name

    def open_of(name: str) -> list[str]:
        return [path for path in group_files(served.server.daemon.pid) if name in path]

    wait_until(lambda: open_of(container), seconds=4 * INTERVAL)
    served.cri.stop_container(container)
    wait_until(lambda: not open_of(container), seconds=4 * INTERVAL)
    assert open_of(group)  # the pod's cgroup
    served.cri.remove(pod.id)
    wait_until(lambda: not open_of(group), seconds=4 * INTERVAL)


def test_unknown_ids_are_not_found(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        served.cri.runtime.ContainerStats(pb.ContainerStatsRequest(container_id="f" * 64))
    assert failure(raised)[0] is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as raised:
        served.cri.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id="f" * 64))
    assert failure(raised)[0] is grpc.StatusCode.NOT_FOUND
