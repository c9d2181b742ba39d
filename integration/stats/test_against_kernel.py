"""Loads of known size, in real control groups: each figure is within 5 %."""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod, pid_of
from integration.stats.kernel_reference import CpuHistory, Disk, anonymous_memory, anonymous_of, cached, group_of
from integration.stats.queries import (
    MIB,
    listed,
    metrics,
    pod_stats,
    pods_listed,
    stats,
    wait_file,
    wait_read,
)
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.base.times import SECOND
from shim.stats.disk import PERIOD
from shim.stats_cache import METRICS_INTERVAL

NEAR = 0.05
ENDLESS = "while :; do :; done"
APART = 5 * SECOND
"""Long enough that delays of the server between two readings do not matter."""
WINDOWS = range(SECOND, 10 * SECOND, SECOND // 20)
"""Possible windows of a rate in ns: a window begins with an earlier pass, which the test may not have seen."""
MANY = 1200
"""Number of processes: more than the kernel returns in one read."""


def test_cpu_time_and_rate_agree_with_the_kernel(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    # With the quota an endless loop uses 300 ms a second. If the machine has less to give, the kernel reports how much;
    # short periods make the rate equal over every window.
    quota = pb.LinuxContainerResources(cpu_period=20_000, cpu_quota=6_000)
    container = kubelet.started(pod, "sh", "-c", ENDLESS, linux=pb.LinuxContainerConfig(resources=quota))
    group = group_of(served, container, "cpuacct")
    began, pod_began = served.cri.container_status(container).started_at, served.cri.sandbox_status(pod.id).created_at

    with (
        CpuHistory(group, idle=(began, began)) as history,
        CpuHistory(group.parent, idle=(pod_began, began)) as of_pod,
    ):
        first = wait_read(lambda: listed(served)[container].cpu, after=time.time_ns())
        pod_first = wait_read(lambda: pods_listed(served)[pod.id].linux.cpu, after=first.timestamp)
        second = wait_read(lambda: listed(served)[container].cpu, after=first.timestamp + APART)
        pod_second = wait_read(lambda: pods_listed(served)[pod.id].linux.cpu, after=pod_first.timestamp + APART)
        asked, pod_asked = stats(served, container).cpu, pod_stats(served, pod).linux.cpu

    assert 0 < history.rate(first.timestamp, second.timestamp) < 0.3 * SECOND * (1 + NEAR)
    check_cpu(history, first, second, asked)
    check_cpu(of_pod, pod_first, pod_second, pod_asked)


def check_cpu(kernel: CpuHistory, first: pb.CpuUsage, second: pb.CpuUsage, asked: pb.CpuUsage) -> None:
    """Check the readings of two consecutive passes, and a later answer."""
    used = second.usage_core_nano_seconds.value - first.usage_core_nano_seconds.value
    assert used == pytest.approx(kernel.between(first.timestamp, second.timestamp), rel=NEAR)
    for reported in (second, asked):
        assert reported.usage_core_nano_seconds.value == pytest.approx(kernel.at(reported.timestamp), rel=NEAR)
        rates = kernel.rates(reported.timestamp, windows=WINDOWS)
        assert any(reported.usage_nano_cores.value == pytest.approx(rate, rel=NEAR) for rate in rates)


def test_the_working_set_excludes_inactive_page_cache(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod], tmp_path: Path
) -> None:
    pod = own_pod()
    # A file that is written with O_DIRECT and read once is inactive page cache and uses no other memory. The buffer
    # of a blocked dd is anonymous memory.
    hold = (
        "dd if=/dev/zero of=/disk/data bs=1M count=200 oflag=direct 2>/dev/null; mkfifo /tmp/pipe; "
        "sleep 3600 <>/tmp/pipe & dd if=/disk/data of=/dev/null bs=1M; "
        "exec dd if=/dev/zero of=/tmp/pipe bs=100M count=1"
    )
    disk = pb.Mount(container_path="/disk", host_path=str(tmp_path))
    container = kubelet.started(pod, "sh", "-c", hold, mounts=[disk])
    first = pid_of(served, container)
    wait_until(lambda: anonymous_memory([first]) >= 100 * MIB, seconds=60)
    cache = cached(tmp_path / "data")
    assert cache > 150 * MIB  # the kernel may have reclaimed some
    assert anonymous_memory([first]) == pytest.approx(100 * MIB, rel=0.01)
    group = group_of(served, container, "memory")
    for each in (group, group.parent):
        wait_until(lambda each=each: anonymous_of(each) == pytest.approx(100 * MIB, rel=0.01))  # type: ignore[misc]

    for memory in (stats(served, container).memory, pod_stats(served, pod).linux.memory):
        assert memory.rss_bytes.value == pytest.approx(100 * MIB, rel=NEAR)
        assert memory.working_set_bytes.value == pytest.approx(100 * MIB, rel=NEAR)
        assert memory.usage_bytes.value == pytest.approx(100 * MIB + cache, rel=NEAR)
        assert memory.usage_bytes.value - memory.working_set_bytes.value == pytest.approx(cache, rel=NEAR)
        assert memory.page_faults.value > 0
    wanted = {
        "container_memory_rss": pytest.approx(100 * MIB, rel=NEAR),
        "container_memory_cache": pytest.approx(cache, rel=NEAR),
        "container_memory_working_set_bytes": pytest.approx(100 * MIB, rel=NEAR),
        "container_memory_usage_bytes": pytest.approx(100 * MIB + cache, rel=NEAR),
    }
    wait_values(served, pod, wanted)


def values(served: Served, pod: Pod) -> dict[str, int]:
    """Return the metrics of a pod's only container, by name; a metric with several label values is summed."""
    [container] = metrics(served, pod).container_metrics
    found: dict[str, int] = {}
    for metric in container.metrics:
        found[metric.name] = found.get(metric.name, 0) + metric.value.value
    return found


def wait_values(served: Served, pod: Pod, wanted: Mapping[str, object]) -> None:
    """Wait until the metrics have these values: the server reads them in advance."""
    seen: dict[str, int] = {}

    def reported() -> bool:
        seen.update(values(served, pod))
        return all(seen.get(name) == value for name, value in wanted.items())

    with contextlib.suppress(AssertionError):
        wait_until(reported, seconds=3 * METRICS_INTERVAL)
    assert {name: seen.get(name) for name in wanted} == wanted


def test_the_writable_layers_size_and_inodes_are_reported(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]
) -> None:
    pod = own_pod()
    write = (
        "dd if=/dev/urandom of=/data bs=1M count=50 2>/dev/null; mkdir /many; "
        "for i in $(seq 1000); do : > /many/$i; done; sync; touch /tmp/written; sleep 3600"
    )
    container = kubelet.started(pod, "sh", "-c", write)
    wait_file(served, container, "/tmp/written")
    reported = kubelet.inside(container, "du -sk /data; find /many | wc -l").split()
    assert int(reported[0]) * 1024 == pytest.approx(50 * MIB, rel=0.01)
    assert int(reported[2]) == 1001

    def complete() -> pb.FilesystemUsage | None:
        layer = stats(served, container).writable_layer
        return layer if layer.inodes_used.value > 1000 else None

    # The first measurement follows the start, the second comes later: one of them finds all files.
    layer = wait_until(complete, seconds=2 * PERIOD)

    assert layer is not None
    assert layer.used_bytes.value == pytest.approx(50 * MIB, rel=NEAR)
    assert layer.inodes_used.value == pytest.approx(1001, rel=NEAR)
    assert layer.fs_id.mountpoint.startswith(served.engine.api.info()["DockerRootDir"])
    wait_values(served, pod, {"container_fs_usage_bytes": pytest.approx(50 * MIB, rel=NEAR)})


def test_bytes_of_the_network_are_counted(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    receiver, sender = own_pod(), own_pod()
    address = served.cri.sandbox_status(receiver.id).network.ip
    listening = kubelet.started(receiver, "sh", "-c", "touch /tmp/up; sleep 3600 | nc -l -p 5000 >/tmp/got")
    wait_file(served, listening, "/tmp/up")
    before = {pod.id: pod_stats(served, pod).linux.network.default_interface for pod in (receiver, sender)}
    assert {interface.name for interface in before.values()} == {"eth0"}

    kubelet.started(sender, "sh", "-c", f"head -c {20 * MIB} /dev/zero | nc {address} 5000; sleep 3600")
    arrived = f"test $(stat -c %s /tmp/got) = {20 * MIB}"
    wait_until(lambda: served.cri.exec(listening, "sh", "-c", arrived).exit_code == 0, seconds=60)

    after = {pod.id: pod_stats(served, pod).linux.network.default_interface for pod in (receiver, sender)}
    # Packets of 1448 bytes have 66 bytes of headers.
    kernel = pytest.approx(20 * MIB * (1 + 66 / 1448), rel=NEAR)
    assert 20 * MIB <= after[receiver.id].rx_bytes.value - before[receiver.id].rx_bytes.value == kernel
    assert 20 * MIB <= after[sender.id].tx_bytes.value - before[sender.id].tx_bytes.value == kernel
    for pod, way in ((receiver, "rx"), (sender, "tx")):
        [container] = [each.attributes.id for each in pod_stats(served, pod).linux.containers]
        counter = served.cri.exec(container, "cat", f"/sys/class/net/eth0/statistics/{way}_bytes")
        assert getattr(after[pod.id], f"{way}_bytes").value == pytest.approx(int(counter.stdout), rel=0.01)
        assert getattr(after[pod.id], f"{way}_errors").value == 0


def test_direct_reads_and_writes_are_counted(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod], disk: Disk
) -> None:
    pod = own_pod()
    mount = pb.Mount(container_path="/disk", host_path=str(disk.directory))
    io = (
        "until test -e /disk/go; do usleep 20000; done; "
        "dd if=/dev/zero of=/disk/data bs=64k count=512 oflag=direct; "
        "dd if=/disk/data of=/dev/null bs=64k count=384 iflag=direct; sleep 3600"
    )
    container = kubelet.started(pod, "sh", "-c", io, mounts=[mount])
    disk.count_for(group_of(served, container, "blkio"))
    (disk.directory / "go").touch()

    wanted = {
        "container_fs_writes_bytes_total": pytest.approx(32 * MIB, rel=NEAR),
        "container_fs_reads_bytes_total": pytest.approx(24 * MIB, rel=NEAR),
        "container_blkio_device_usage_total": pytest.approx(56 * MIB, rel=NEAR),
        "container_fs_writes_total": pytest.approx(512, rel=NEAR),
        "container_fs_reads_total": pytest.approx(384, rel=NEAR),
    }
    wait_values(served, pod, wanted)


def test_processes_are_counted(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pod = own_pod()
    many = f"for i in $(seq {MANY}); do sleep 3600 & done; touch /tmp/up; wait"
    wait_file(served, kubelet.started(pod, "sh", "-c", many), "/tmp/up")

    # Pause, the shell and its children.
    assert wait_until(lambda: pod_stats(served, pod).linux.process.process_count.value == MANY + 2)
    wait_values(served, pod, {"container_processes": MANY + 1, "container_threads": MANY + 1})
