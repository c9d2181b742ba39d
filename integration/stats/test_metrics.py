"""Every metric of the conformance suite, with all labels."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from integration.conftest import Images, Served
from integration.pods.kubelet import Kubelet, Pod, docker_name, pid_of
from integration.stats.kernel_reference import UNIFIED, Disk, group_of
from integration.stats.queries import MIB, metrics
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.stats.disk import PERIOD
from shim.stats_cache import METRICS_INTERVAL

EVERY = ("pod", "namespace", "container", "id", "image", "name")
BY_DEVICE = ("device",)
BY_SIZE = ("pagesize",)
OF_POD = ("interface",)
LABELS = {
    "container_blkio_device_usage_total": ("device", "major", "minor", "operation"),
    "container_cpu_cfs_periods_total": (),
    "container_cpu_cfs_throttled_periods_total": (),
    "container_cpu_cfs_throttled_seconds_total": (),
    "container_cpu_system_seconds_total": (),
    "container_cpu_usage_seconds_total": ("cpu",),
    "container_cpu_user_seconds_total": (),
    "container_file_descriptors": (),
    "container_fs_inodes_free": BY_DEVICE,
    "container_fs_inodes_total": BY_DEVICE,
    "container_fs_limit_bytes": BY_DEVICE,
    "container_fs_reads_bytes_total": BY_DEVICE,
    "container_fs_reads_total": BY_DEVICE,
    "container_fs_usage_bytes": BY_DEVICE,
    "container_fs_writes_bytes_total": BY_DEVICE,
    "container_fs_writes_total": BY_DEVICE,
    "container_hugetlb_max_usage_bytes": BY_SIZE,
    "container_hugetlb_usage_bytes": BY_SIZE,
    "container_last_seen": (),
    "container_memory_cache": (),
    "container_memory_failcnt": (),
    "container_memory_failures_total": ("failure_type", "scope"),
    "container_memory_kernel_usage": (),
    "container_memory_mapped_file": (),
    "container_memory_max_usage_bytes": (),
    "container_memory_rss": (),
    "container_memory_swap": (),
    "container_memory_usage_bytes": (),
    "container_memory_working_set_bytes": (),
    "container_network_receive_bytes_total": OF_POD,
    "container_network_receive_errors_total": OF_POD,
    "container_network_receive_packets_dropped_total": OF_POD,
    "container_network_receive_packets_total": OF_POD,
    "container_network_transmit_bytes_total": OF_POD,
    "container_network_transmit_errors_total": OF_POD,
    "container_network_transmit_packets_dropped_total": OF_POD,
    "container_network_transmit_packets_total": OF_POD,
    "container_oom_events_total": (),
    "container_pressure_cpu_stalled_seconds_total": (),
    "container_pressure_cpu_waiting_seconds_total": (),
    "container_pressure_io_stalled_seconds_total": (),
    "container_pressure_io_waiting_seconds_total": (),
    "container_pressure_memory_stalled_seconds_total": (),
    "container_pressure_memory_waiting_seconds_total": (),
    "container_processes": (),
    "container_sockets": (),
    "container_spec_cpu_period": (),
    "container_spec_cpu_quota": (),
    "container_spec_cpu_shares": (),
    "container_spec_memory_limit_bytes": (),
    "container_spec_memory_reservation_limit_bytes": (),
    "container_spec_memory_swap_limit_bytes": (),
    "container_start_time_seconds": (),
    "container_threads": (),
    "container_threads_max": (),
    "container_ulimits_soft": ("ulimit",),
}
"""Labels that follow those of EVERY."""

OF_LAYER = {f"container_fs_{name}" for name in ("inodes_free", "inodes_total", "limit_bytes", "usage_bytes")}
"""Metrics whose device label is the device of Docker's directory."""

Labelled = dict[str, list[tuple[str, ...]]]
"""Values of labels by the name of the metric, in reported order."""


def path_of(served: Served, container_id: str) -> str:
    """Return cAdvisor's name of a container: the path of its control group."""
    lines = Path(f"/proc/{pid_of(served, container_id)}/cgroup").read_text().splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    path = paths.get("memory", paths[UNIFIED])
    assert container_id in path
    return path


def layer_device(served: Served) -> str:
    """Return the device of the image layers."""
    number = Path(served.engine.api.info()["DockerRootDir"]).stat().st_dev
    known = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    return f"/dev/{known.readlink().name}" if known.is_symlink() else known.name


def labelled(found: Iterable[pb.Metric]) -> Labelled:
    by_name: Labelled = defaultdict(list)
    for metric in found:
        by_name[metric.name].append(tuple(metric.label_values))
    return dict(by_name)


def own_labels(disk: Disk, layer: str) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return the expected values of the labels that follow EVERY, by their keys."""
    device = (disk.device,)
    numbered = (*device, str(disk.major), str(disk.minor))
    faults: set[tuple[str, ...]] = {
        (kind, scope) for kind in ("pgfault", "pgmajfault") for scope in ("container", "hierarchy")
    }
    return {
        (): {()},
        ("cpu",): {("total",)},
        BY_DEVICE: {device},
        ("layer",): {(layer,)},
        ("device", "major", "minor", "operation"): {(*numbered, "Read"), (*numbered, "Write")},
        ("failure_type", "scope"): faults,
        ("ulimit",): {("max_open_files",)},
        BY_SIZE: {(page_size(path),) for path in Path("/sys/kernel/mm/hugepages").glob("hugepages-*")},
        OF_POD: {("eth0",)},
    }


def started_at(served: Served, container_id: str) -> int:
    """Return Docker's start time in seconds since the epoch."""
    text = served.engine.api.inspect_container(container_id)["State"]["StartedAt"]
    return int(datetime.fromisoformat(f"{text[:19]}+00:00").timestamp())


def page_size(directory: Path) -> str:
    """Return a size of huge pages as in control groups: 2MB, 1GB."""
    kilobytes = int(directory.name.removeprefix("hugepages-").removesuffix("kB"))
    return f"{kilobytes >> 20}GB" if kilobytes >= 1 << 20 else f"{kilobytes >> 10}MB"


def not_reported_here(served: Served, container_id: str) -> set[str]:
    """Return the metrics for which this machine's kernel has no figures."""
    unified = group_of(served, container_id, UNIFIED)
    # On a hybrid machine not every engine makes a group in the v2 tree, which has the pressure files.
    pressure = container_id in unified.name and (unified / "cpu.pressure").exists()
    pages = group_of(served, container_id, "hugetlb")
    there = {
        "_pressure_": pressure,
        "_hugetlb_usage_": any(pages.glob("hugetlb.*")),
        "_hugetlb_max_usage_": any(pages.glob("hugetlb.*.max_usage_in_bytes")),  # v2 has no such file
    }
    return {name for name in LABELS for word, is_there in there.items() if word in name and not is_there}


def test_every_metric_is_described(served: Served) -> None:
    described = served.cri.runtime.ListMetricDescriptors(pb.ListMetricDescriptorsRequest()).descriptors

    assert len(LABELS) == len(described) == 56
    assert {each.name: tuple(each.label_keys) for each in described} == {
        name: (*EVERY, *labels) for name, labels in LABELS.items()
    }
    assert all(each.help for each in described)


def test_all_labels_of_a_pod_with_two_containers(
    served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod], images: Images, disk: Disk
) -> None:
    pod = own_pod()
    mount = pb.Mount(container_path="/disk", host_path=str(disk.directory))
    containers = {}
    for name, memory in (("web", 64 * MIB), ("side", 96 * MIB)):
        resources = pb.LinuxContainerResources(
            cpu_period=100_000, cpu_quota=50_000, cpu_shares=512, memory_limit_in_bytes=memory
        )
        file = f"/disk/{name}"
        io = (
            "until test -e /disk/go; do usleep 20000; done; "
            f"dd if=/dev/zero of={file} bs=64k count=4 oflag=direct; "
            f"dd if={file} of=/dev/null bs=64k iflag=direct; exec sleep 3600"
        )
        made = kubelet.started(
            pod,
            "sh",
            "-c",
            io,
            metadata=pb.ContainerMetadata(name=name),
            linux=pb.LinuxContainerConfig(resources=resources),
            mounts=[mount],
        )
        containers[name] = made
        disk.count_for(group_of(served, made, "blkio"))
    (disk.directory / "go").touch()

    def complete() -> pb.PodSandboxMetrics | None:
        found = metrics(served, pod)
        names = [labelled(each.metrics).keys() for each in found.container_metrics]
        wanted = {"container_fs_usage_bytes", "container_fs_reads_total"}
        return found if len(names) == 2 and all(wanted <= each for each in names) else None

    found = wait_until(complete, seconds=2 * PERIOD + METRICS_INTERVAL)

    assert found is not None
    reported = {each.container_id: each for each in found.container_metrics}
    assert reported.keys() == set(containers.values())
    pod_name, own = pod.config.metadata.name, own_labels(disk, layer_device(served))
    network = {name for name, keys in LABELS.items() if keys == OF_POD}
    base = (pod_name, "default", "POD", path_of(served, pod.id), images.pause, docker_name(served, pod.id))
    check_labels(found.metrics, names=network, base=base, own=own)
    for name, container in containers.items():
        names = LABELS.keys() - network - not_reported_here(served, container)
        base = (pod_name, "default", name, path_of(served, container), images.busybox, docker_name(served, container))
        check_labels(reported[container].metrics, names=names, base=base, own=own)
        values = {metric.name: metric.value.value for metric in reported[container].metrics}
        assert values["container_spec_memory_limit_bytes"] == {"web": 64, "side": 96}[name] * MIB
        assert [values[f"container_spec_cpu_{key}"] for key in ("period", "quota", "shares")] == [100_000, 50_000, 512]
        assert values["container_start_time_seconds"] == started_at(served, container)


def check_labels(
    found: Iterable[pb.Metric],
    *,
    names: Iterable[str],
    base: tuple[str, ...],
    own: dict[tuple[str, ...], set[tuple[str, ...]]],
) -> None:
    """Check that exactly these metrics are reported, each with the right labels and without duplicates."""
    every = labelled(found)
    assert every.keys() == set(names)
    for name, labels in every.items():
        assert len(labels) == len(set(labels)), name
        assert {each[: len(EVERY)] for each in labels} == {base}, name
        assert {each[len(EVERY) :] for each in labels} == (own["layer",] if name in OF_LAYER else own[LABELS[name]]), (
            name
        )


def test_the_stream_has_each_pod_once(served: Served, kubelet: Kubelet, own_pod: Callable[[], Pod]) -> None:
    pods = [own_pod() for _ in range(3)]
    for pod in pods:
        kubelet.started(pod)

    parts = list(served.cri.runtime.StreamPodSandboxMetrics(pb.StreamPodSandboxMetricsRequest()))

    assert sorted(each.pod_sandbox_id for part in parts for each in part.pod_sandbox_metrics) == sorted(
        pod.id for pod in pods
    )
