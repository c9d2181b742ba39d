import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.places import Group
from shim.domain import references
from shim.runtime import Runtime
from shim.stats import metrics as module
from shim.stats.descriptors import BASE_LABELS
from shim.stats.metrics import list_metric_descriptors, list_pod_sandbox_metrics
from shim.stats.network import interfaces_from_net_dev
from shim.stats_cache import FileSystem, LayerUsage
from tests.cgroup.trees import DATA, group_v1, group_v2
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running
from tests.stats.kernel import NET_DEV
from tests.stats.placed import VERSIONS, Pod, place, pod_with_container, without_docker

NAMES = {
    "container_blkio_device_usage_total",
    "container_cpu_cfs_periods_total",
    "container_cpu_cfs_throttled_periods_total",
    "container_cpu_cfs_throttled_seconds_total",
    "container_cpu_system_seconds_total",
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_file_descriptors",
    "container_fs_inodes_free",
    "container_fs_inodes_total",
    "container_fs_limit_bytes",
    "container_fs_reads_bytes_total",
    "container_fs_reads_total",
    "container_fs_usage_bytes",
    "container_fs_writes_bytes_total",
    "container_fs_writes_total",
    "container_hugetlb_max_usage_bytes",
    "container_hugetlb_usage_bytes",
    "container_last_seen",
    "container_memory_cache",
    "container_memory_failcnt",
    "container_memory_failures_total",
    "container_memory_kernel_usage",
    "container_memory_mapped_file",
    "container_memory_max_usage_bytes",
    "container_memory_rss",
    "container_memory_swap",
    "container_memory_usage_bytes",
    "container_memory_working_set_bytes",
    "container_network_receive_bytes_total",
    "container_network_receive_errors_total",
    "container_network_receive_packets_dropped_total",
    "container_network_receive_packets_total",
    "container_network_transmit_bytes_total",
    "container_network_transmit_errors_total",
    "container_network_transmit_packets_dropped_total",
    "container_network_transmit_packets_total",
    "container_oom_events_total",
    "container_pressure_cpu_stalled_seconds_total",
    "container_pressure_cpu_waiting_seconds_total",
    "container_pressure_io_stalled_seconds_total",
    "container_pressure_io_waiting_seconds_total",
    "container_pressure_memory_stalled_seconds_total",
    "container_pressure_memory_waiting_seconds_total",
    "container_processes",
    "container_sockets",
    "container_spec_cpu_period",
    "container_spec_cpu_quota",
    "container_spec_cpu_shares",
    "container_spec_memory_limit_bytes",
    "container_spec_memory_reservation_limit_bytes",
    "container_spec_memory_swap_limit_bytes",
    "container_start_time_seconds",
    "container_threads",
    "container_threads_max",
    "container_ulimits_soft",
}
"""Metrics that the kubelet's conformance tests require."""


def keys() -> dict[str, list[str]]:
    return {descriptor.name: list(descriptor.label_keys) for descriptor in list_metric_descriptors()}


def by_name(metrics: pb.ContainerMetrics | pb.PodSandboxMetrics) -> dict[str, list[pb.Metric]]:
    found = defaultdict(list)
    for metric in metrics.metrics:
        found[metric.name].append(metric)
    return dict(found)


def values(metrics: list[pb.Metric]) -> dict[tuple[str, ...], int]:
    """Return the values by the labels that follow the base labels."""
    return {tuple(metric.label_values)[len(BASE_LABELS) :]: metric.value.value for metric in metrics}


def read_ahead(rt: Runtime, pod: Pod) -> pb.PodSandboxMetrics:
    """Read the metrics of a pod like a pass does, at a time long ago."""
    metrics = module.pod_metrics(rt, rt.view.sandbox(pod.sandbox))
    for metric in (*metrics.metrics, *(each for found in metrics.container_metrics for each in found.metrics)):
        metric.timestamp = 1
    rt.stats_cache.sandbox_metrics.put(pod.sandbox, metrics)
    return metrics


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    (tmp_path / "upper").mkdir()
    return tmp_path / "upper"


def pod_with_layer(rt: Runtime, group: Group, upper: Path) -> Pod:
    pod = pod_with_container(rt, group)
    rt.stats_cache.uppers[pod.container] = upper
    rt.stats_cache.layers[pod.container] = LayerUsage(
        at=1, used_bytes=4096, inodes=3, store="/s", file_system=FileSystem(1 << 30, 1000, 900, 253, 77)
    )
    return pod


def test_descriptors_have_name_help_and_labels() -> None:
    described = list_metric_descriptors()

    assert {descriptor.name for descriptor in described} == NAMES
    assert len(described) == len(NAMES) == 56
    assert all(descriptor.help for descriptor in described)
    assert keys()["container_memory_rss"] == ["pod", "namespace", "container", "id", "image", "name"]
    assert keys()["container_network_receive_bytes_total"][-1:] == ["interface"]
    assert keys()["container_blkio_device_usage_total"][-4:] == ["device", "major", "minor", "operation"]


def test_cgroup_v2_has_nearly_all_metrics(rt: Runtime, upper: Path) -> None:
    pod_with_layer(rt, group_v2(), upper)

    [pod] = list_pod_sandbox_metrics(rt)
    [container] = pod.container_metrics

    missing = NAMES - by_name(container).keys()
    assert missing == {name for name in NAMES if name.startswith("container_network_")} | {
        # No quota is set, version 2 has no peak of huge pages, and the fake process has no limits.
        "container_spec_cpu_quota",
        "container_hugetlb_max_usage_bytes",
        "container_ulimits_soft",
    }


@VERSIONS
def test_every_metric_has_a_value_for_each_of_its_labels(rt: Runtime, group: Group, upper: Path) -> None:
    pod = pod_with_layer(rt, group, upper)

    [found] = list_pod_sandbox_metrics(rt)
    [container] = found.container_metrics

    assert (found.pod_sandbox_id, container.container_id) == (pod.sandbox, pod.container)
    for metric in container.metrics:
        assert len(metric.label_values) == len(keys()[metric.name])
        assert metric.timestamp > 0
    name = rt.view.container(pod.container).name
    assert list(container.metrics[0].label_values) == [
        "web",
        "default",
        "app",
        pod.container,
        "docker.io/library/busybox:latest",
        name,
    ]


def test_cgroup_v2_values_are_reported(rt: Runtime, upper: Path) -> None:
    pod_with_layer(rt, group_v2(), upper)

    [container] = list_pod_sandbox_metrics(rt)[0].container_metrics
    found = {name: values(metrics) for name, metrics in by_name(container).items()}

    assert found["container_cpu_usage_seconds_total"] == {("total",): 9}
    assert found["container_cpu_user_seconds_total"] == {(): 8}
    assert found["container_cpu_cfs_throttled_periods_total"] == {(): 45}
    assert found["container_memory_cache"] == {(): 40_415_232}
    assert found["container_memory_max_usage_bytes"] == {(): 201_326_592}
    assert found["container_memory_swap"] == {(): 4_194_304}
    assert found["container_memory_failcnt"] == {(): 17}
    assert found["container_oom_events_total"] == {(): 1}
    assert found["container_memory_failures_total"][("pgmajfault", "container")] == 64
    assert found["container_hugetlb_usage_bytes"] == {("2MB",): 4_194_304, ("1GB",): 0}
    assert found["container_pressure_cpu_waiting_seconds_total"] == {(): 4}
    assert found["container_fs_usage_bytes"] == {("253:77",): 4096}
    assert found["container_fs_limit_bytes"] == {("253:77",): 1 << 30}
    assert found["container_fs_inodes_total"] == {("253:77",): 1000}
    assert found["container_fs_inodes_free"] == {("253:77",): 900}
    assert found["container_threads_max"] == {(): 4096}
    assert found["container_spec_memory_limit_bytes"] == {(): 256 << 20}
    assert found["container_spec_cpu_period"] == {(): 100_000}
    assert 50 << 20 in found["container_fs_writes_bytes_total"].values()
    assert {labels[1:] for labels in found["container_blkio_device_usage_total"]} >= {("8", "0", "Read")}


def test_device_names_are_read_in_each_pass(
    rt: Runtime, upper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device number is reused after the device is gone, and exists before the device has a name."""
    pod_with_layer(rt, group_v2(), upper)
    devices = tmp_path / "devices"
    devices.mkdir()
    monkeypatch.setattr(module, "_DEVICES", devices)
    seen: list[str] = []
    for name in ("", "sda", "sdb"):
        (devices / "8:0").unlink(missing_ok=True)
        if name:
            (devices / "8:0").symlink_to(f"../../devices/virtual/block/{name}")
        [container] = list_pod_sandbox_metrics(rt)[0].container_metrics
        seen += {
            labels[0] for labels in values(by_name(container)["container_blkio_device_usage_total"]) if labels[1] == "8"
        }

    assert seen == ["8:0", "/dev/sda", "/dev/sdb"]


def test_quota_is_reported_only_if_set(rt: Runtime, upper: Path) -> None:
    pod = pod_with_layer(rt, group_v2(), upper)
    rt.engine.update_container(pod.container, body={"CpuQuota": 20_000})
    rt.view.refresh_container(pod.container)

    [container] = list_pod_sandbox_metrics(rt)[0].container_metrics

    assert values(by_name(container)["container_spec_cpu_quota"]) == {(): 20_000}


def test_the_network_belongs_to_the_pod(rt: Runtime, upper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = pod_with_layer(rt, group_v1(), upper)
    assert not list_pod_sandbox_metrics(rt)[0].metrics
    rt.view.sandbox(pod.sandbox).config.linux.security_context.namespace_options.network = pb.POD
    monkeypatch.setattr(module, "interfaces_of", lambda _pid: interfaces_from_net_dev(NET_DEV))

    [found] = list_pod_sandbox_metrics(rt)

    received = by_name(found)["container_network_receive_bytes_total"]
    assert values(received) == {("net1",): 0, ("eth0",): 4_294_967_296_001}
    assert list(received[0].label_values)[:4] == ["web", "default", "POD", pod.sandbox]
    assert len(by_name(found)) == 8
    assert all(len(metric.label_values) == len(keys()[metric.name]) for metric in found.metrics)


def test_id_is_the_cgroup_path_as_for_cadvisor(rt: Runtime, upper: Path) -> None:
    pod = pod_with_layer(rt, group_v1(), upper)
    place = rt.cgroups.place(pod.container, pid=rt.view.container(pod.container).state.pid)
    assert place is not None
    rt.cgroups.remember(pod.container, replace(place, path=f"/kubepods/burstable/podu/{pod.container}"))

    [found] = list_pod_sandbox_metrics(rt)

    [of_container] = found.container_metrics
    assert {metric.label_values[3] for metric in of_container.metrics} == {f"/kubepods/burstable/podu/{pod.container}"}


def test_image_with_several_names_is_shown_by_the_requested_name(rt: Runtime, engine: FakeEngine) -> None:
    image_id = engine.add_image("a.example/first:1")
    engine.images[-1].tags.append("z.example/asked:1")
    rt.view.images.refresh()
    wanted = pb.ImageSpec(image=image_id, user_specified_image="z.example/asked:1")
    place(rt, running(rt, ready_pod(rt), image=wanted), group_v2())

    [found] = list_pod_sandbox_metrics(rt)

    [of_container] = found.container_metrics
    assert {metric.label_values[4] for metric in of_container.metrics} == {"z.example/asked:1"}


def test_image_of_a_pod_is_its_pause_image(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "interfaces_of", lambda _pid: interfaces_from_net_dev(NET_DEV))
    sandbox = ready_pod(rt)
    record = rt.view.sandbox(sandbox)
    record.config.linux.security_context.namespace_options.network = pb.POD
    changed = replace(rt, config=msgspec.structs.replace(rt.config, pod_infra_container_image=BUSYBOX))

    [found] = list_pod_sandbox_metrics(changed)

    labels = {tuple(metric.label_values)[2:6] for metric in found.metrics}
    assert labels == {("POD", sandbox, references.canonical(rt.config.pod_infra_container_image), record.name)}


def test_unknown_task_limit_is_not_reported_as_unlimited(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(group_v2().directory, tmp_path / "c1")
    (tmp_path / "c1/pids.current").unlink()
    pod_with_container(rt, group_v2("c1", root=tmp_path))

    [container] = list_pod_sandbox_metrics(rt)[0].container_metrics

    assert "container_threads_max" not in by_name(container)


def test_vanished_container_does_not_affect_others(rt: Runtime, tmp_path: Path) -> None:
    pod_with_container(rt, group_v2(root=tmp_path / "nothing"), name="goes")
    stays = pod_with_container(rt, group_v2(), name="stays")

    found = {pod.pod_sandbox_id: pod for pod in list_pod_sandbox_metrics(rt)}

    assert len(found) == 2
    assert [container.container_id for container in found[stays.sandbox].container_metrics] == [stays.container]


def test_list_is_answered_from_the_last_pass(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    ahead = read_ahead(rt, pod)

    assert list_pod_sandbox_metrics(rt) == [ahead]
    assert rt.stats_cache.sandbox_metrics.requested_recently


def test_second_answer_has_current_cpu_time_and_network(
    rt: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a second later: otherwise a client that asks twice would see no progress."""
    shutil.copytree(DATA / "v2", tmp_path / "v2")
    group = group_v2(root=tmp_path / "v2")
    pod = pod_with_container(rt, group)
    rt.view.sandbox(pod.sandbox).config.linux.security_context.namespace_options.network = pb.POD
    monkeypatch.setattr(module, "interfaces_of", lambda _: interfaces_from_net_dev(NET_DEV))
    ahead = read_ahead(rt, pod)
    [first] = list_pod_sandbox_metrics(rt)
    assert first == ahead
    directory = Path(group.directory)
    spent = (directory / "cpu.stat").read_text()
    (directory / "cpu.stat").write_text(spent.replace("usage_usec ", "usage_usec 9"))
    (directory / "memory.current").write_text("0\n")

    [second] = list_pod_sandbox_metrics(rt)

    was, now = (by_name(each.container_metrics[0]) for each in (first, second))
    assert now.keys() == was.keys()
    used = "container_cpu_usage_seconds_total"
    assert now[used][0].value.value > was[used][0].value.value
    assert now[used][0].label_values == was[used][0].label_values
    assert now[used][0].timestamp > was[used][0].timestamp
    assert now["container_memory_usage_bytes"] == was["container_memory_usage_bytes"]
    assert by_name(second)["container_network_receive_bytes_total"][0].timestamp > 1


def test_container_started_since_the_pass_is_reported(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.stats_cache.sandbox_metrics.put(pod.sandbox, pb.PodSandboxMetrics(pod_sandbox_id=pod.sandbox))

    [metrics] = list_pod_sandbox_metrics(rt)

    assert [each.container_id for each in metrics.container_metrics] == [pod.container]


def test_docker_is_not_queried(rt: Runtime, upper: Path) -> None:
    pod_with_layer(rt, group_v1(), upper)

    assert len(list_pod_sandbox_metrics(without_docker(rt))[0].container_metrics) == 1
