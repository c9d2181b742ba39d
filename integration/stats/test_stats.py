"""Real load of known size, on this machine's control groups."""

import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK
from integration.pods.kubelet import Kubelet, Pod, failure
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.samples import INTERVAL, SECOND
from shim.stats.disk import PERIOD

MIB = 1 << 20


def stats(served: Served, container_id: str) -> pb.ContainerStats:
    request = pb.ContainerStatsRequest(container_id=container_id)
    return served.cri.runtime.ContainerStats(request).stats


def pod_stats(served: Served, pod: Pod) -> pb.PodSandboxStats:
    return served.cri.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id=pod.id)).stats


def listed(served: Served) -> dict[str, pb.ContainerStats]:
    answer = served.cri.runtime.ListContainerStats(pb.ListContainerStatsRequest())
    return {found.attributes.id: found for found in answer.stats}


def pods_listed(served: Served) -> dict[str, pb.PodSandboxStats]:
    answer = served.cri.runtime.ListPodSandboxStats(pb.ListPodSandboxStatsRequest())
    return {found.attributes.id: found for found in answer.stats}


def wait_output(served: Served, container_id: str, text: str) -> None:
    """Wait until a container has made a file of this name in its `/tmp`."""
    wait_until(lambda: served.cri.exec(container_id, "test", "-e", f"/tmp/{text}").exit_code == 0)


def test_cpu_time_and_its_rate(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    # A quota makes 300 ms a second of an endless loop, on any machine.
    quota = pb.LinuxContainerResources(cpu_period=100_000, cpu_quota=30_000)
    container = kubelet.started(pod, "sh", "-c", "while :; do :; done", linux=pb.LinuxContainerConfig(resources=quota))
    first, truth_before = stats(served, container), cpu_of(served, container)
    assert first.cpu.usage_nano_cores.value > 0
    time.sleep(10)  # the passing of time is what is measured
    second, truth_after = stats(served, container), cpu_of(served, container)
    of_pod = pod_stats(served, pod).linux.cpu

    used = second.cpu.usage_core_nano_seconds.value - first.cpu.usage_core_nano_seconds.value
    share = used * SECOND / (second.cpu.timestamp - first.cpu.timestamp)
    assert used == pytest.approx(truth_after - truth_before, rel=0.05)
    # A busy machine gives less than the quota, and not the same in each second.
    assert share <= 0.33 * SECOND
    assert second.cpu.usage_nano_cores.value == pytest.approx(share, rel=0.3)
    assert of_pod.usage_core_nano_seconds.value >= second.cpu.usage_core_nano_seconds.value
    assert of_pod.usage_nano_cores.value == pytest.approx(share, rel=0.3)


def cpu_of(served: Served, container_id: str) -> int:
    """Nanoseconds, as Docker counts them."""
    told = served.engine.api.stats(container_id, stream=False, one_shot=True)
    return int(told["cpu_stats"]["cpu_usage"]["total_usage"])


def test_the_working_set_is_not_the_page_cache(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod], tmp_path: Path
) -> None:
    pod = own_pod()
    # A shell variable is anonymous memory; a file on a disk that is written once is inactive page cache. The engine's
    # own files are in memory, which the kernel could not give back.
    disk = pb.Mount(container_path="/disk", host_path=str(tmp_path))
    hold = (
        "dd if=/dev/zero of=/disk/data bs=1M count=200 2>/dev/null; sync; "
        f"x=$(head -c {100 * MIB} /dev/zero | tr '\\0' x); touch /tmp/held; sleep 3600; echo $x"
    )
    container = kubelet.started(pod, "sh", "-c", hold, mounts=[disk])
    wait_output(served, container, "held")

    memory = stats(served, container).memory
    of_pod = pod_stats(served, pod).linux.memory
    (tmp_path / "data").unlink()

    assert memory.rss_bytes.value == pytest.approx(100 * MIB, rel=0.05)
    # The kernel's own tables for all these pages are part of it.
    assert 100 * MIB <= memory.working_set_bytes.value <= 110 * MIB
    assert memory.usage_bytes.value == pytest.approx(300 * MIB, rel=0.05)
    assert memory.page_faults.value > 0
    assert of_pod.working_set_bytes.value == pytest.approx(memory.working_set_bytes.value, rel=0.05)


def test_available_memory_and_swap(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=64 * MIB)
    limited = stats(served, kubelet.started(own_pod(), linux=pb.LinuxContainerConfig(resources=limit)))

    assert limited.memory.available_bytes.value == 64 * MIB - limited.memory.working_set_bytes.value
    assert limited.swap.swap_usage_bytes.value == 0


def test_what_is_written_to_the_layer(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    write = (
        "dd if=/dev/urandom of=/data bs=1M count=50 2>/dev/null; mkdir /many; "
        "for i in $(seq 1000); do : > /many/$i; done; sync; touch /tmp/written; sleep 3600"
    )
    container = kubelet.created(own_pod(), "sh", "-c", write)
    # The first measurement comes right after the start, the next a while later: one of them finds everything there.
    served.cri.start(container)
    wait_output(served, container, "written")

    def complete() -> pb.FilesystemUsage | None:
        layer = stats(served, container).writable_layer
        return layer if layer.inodes_used.value > 1000 else None

    layer = wait_until(complete, seconds=2 * PERIOD)

    assert layer is not None
    assert layer.used_bytes.value == pytest.approx(50 * MIB, rel=0.05)
    assert layer.inodes_used.value == pytest.approx(1000, rel=0.05)
    assert layer.fs_id.mountpoint.startswith(served.engine.api.info()["DockerRootDir"])


def test_counted_bytes_of_the_network(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    receiver, sender = own_pod(), own_pod()
    address = served.cri.sandbox_status(receiver.id).network.ip
    listening = kubelet.started(receiver, "sh", "-c", "touch /tmp/up; sleep 3600 | nc -l -p 5000 >/tmp/got")
    wait_output(served, listening, "up")
    before = {pod.id: pod_stats(served, pod).linux.network.default_interface for pod in (receiver, sender)}
    assert {interface.name for interface in before.values()} == {"eth0"}

    kubelet.started(sender, "sh", "-c", f"head -c {20 * MIB} /dev/zero | nc {address} 5000; sleep 3600")
    arrived = f"test $(stat -c %s /tmp/got) = {20 * MIB}"
    wait_until(lambda: served.cri.exec(listening, "sh", "-c", arrived).exit_code == 0)

    after = {pod.id: pod_stats(served, pod).linux.network.default_interface for pod in (receiver, sender)}
    received = after[receiver.id].rx_bytes.value - before[receiver.id].rx_bytes.value
    sent = after[sender.id].tx_bytes.value - before[sender.id].tx_bytes.value
    # Packets of 1448 bytes have 66 of headers.
    assert 20 * MIB <= received == pytest.approx(20 * MIB * (1 + 66 / 1448), rel=0.05)
    assert sent == pytest.approx(received, rel=0.05)
    counter = served.cri.exec(listening, "cat", "/sys/class/net/eth0/statistics/rx_bytes")
    assert after[receiver.id].rx_bytes.value == pytest.approx(int(counter.stdout), rel=0.01)
    assert after[receiver.id].rx_errors.value == 0


def test_the_network_of_the_host_is_not_told(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    kubelet.started(pod)

    assert not pod_stats(served, pod).linux.HasField("network")


def test_a_pod_without_a_group_of_its_own_has_the_sum_of_its_containers(served: Served, kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    containers = [kubelet.started(pod), kubelet.started(pod)]

    linux = pod_stats(served, pod).linux

    assert {found.attributes.id for found in linux.containers} == set(containers)
    assert linux.memory.usage_bytes.value >= sum(found.memory.usage_bytes.value for found in linux.containers)
    assert linux.process.process_count.value == 3


def test_processes_are_counted(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    container = kubelet.started(pod, "sh", "-c", "sleep 3600 & sleep 3600 & touch /tmp/up; wait")
    wait_output(served, container, "up")

    # Pause, the shell and its two children.
    assert wait_until(lambda: pod_stats(served, pod).linux.process.process_count.value == 4)


def test_lists_have_what_runs_and_filters_hold(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
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


def test_lists_read_ahead_are_recent(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    container = kubelet.started(pod)
    first = listed(served)[container].cpu.timestamp
    pods_listed(served)
    time.sleep(2 * INTERVAL)  # two passes

    found = listed(served)[container]

    assert first < found.cpu.timestamp
    assert abs(time.time_ns() - found.cpu.timestamp) < 2 * INTERVAL * SECOND
    assert found.cpu.HasField("usage_nano_cores")


def test_unknown_ids(served: Served) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        served.cri.runtime.ContainerStats(pb.ContainerStatsRequest(container_id="f" * 64))
    assert failure(raised)[0] is grpc.StatusCode.NOT_FOUND
    with pytest.raises(grpc.RpcError) as raised:
        served.cri.runtime.PodSandboxStats(pb.PodSandboxStatsRequest(pod_sandbox_id="f" * 64))
    assert failure(raised)[0] is grpc.StatusCode.NOT_FOUND


def test_the_metrics_conformance_asks_for(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    resources = pb.LinuxContainerResources(
        cpu_period=100_000, cpu_quota=20_000, cpu_shares=1024, memory_limit_in_bytes=64 * MIB
    )
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=resources))
    described = {
        found.name: list(found.label_keys)
        for found in served.cri.runtime.ListMetricDescriptors(pb.ListMetricDescriptorsRequest()).descriptors
    }
    assert len(described) == 56

    def metrics() -> pb.PodSandboxMetrics | None:
        answer = served.cri.runtime.ListPodSandboxMetrics(pb.ListPodSandboxMetricsRequest())
        found = next(each for each in answer.pod_metrics if each.pod_sandbox_id == pod.id)
        names = {metric.name for each in found.container_metrics for metric in each.metrics}
        return found if "container_fs_usage_bytes" in names else None

    found = wait_until(metrics)
    assert found is not None
    [of_container] = found.container_metrics
    every = [*found.metrics, *of_container.metrics]
    for metric in every:
        assert len(metric.label_values) == len(described[metric.name])
    may_be_missing = (
        "container_hugetlb_",
        "container_pressure_",
        "container_fs_reads",
        "container_fs_writes",
        "container_blkio_",
    )
    missing = described.keys() - {metric.name for metric in every}
    assert [name for name in missing if not name.startswith(may_be_missing)] == []
    values = {metric.name: metric.value.value for metric in of_container.metrics}
    assert values["container_spec_memory_limit_bytes"] == 64 * MIB
    assert values["container_spec_cpu_quota"] == 20_000
    assert (values["container_processes"], values["container_threads"]) == (1, 1)
    assert of_container.container_id == container
    labels = dict(zip(described["container_memory_rss"], of_container.metrics[0].label_values, strict=False))
    assert (labels["pod"], labels["namespace"]) == (pod.config.metadata.name, "default")
    assert "busybox" in labels["image"]
    request = pb.StreamPodSandboxMetricsRequest()
    streamed = [
        each for part in served.cri.runtime.StreamPodSandboxMetrics(request) for each in part.pod_sandbox_metrics
    ]
    assert pod.id in [each.pod_sandbox_id for each in streamed]
