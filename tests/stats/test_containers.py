import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base.times import SECOND
from shim.cgroup.places import Group
from shim.cgroup.v2 import GroupV2
from shim.domain.errors import InvalidArgument, NotFound
from shim.runtime import Runtime
from shim.stats.containers import container_stats, list_container_stats
from shim.stats.sandboxes import pod_sandbox_stats
from shim.stats_cache import LayerUsage, Point
from tests.cgroup.removal import remove_group
from tests.cgroup.trees import DATA, group_v1, group_v2
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running
from tests.stats.placed import VERSIONS, pod_with_container, without_docker


def listed(rt: Runtime, **wanted: Any) -> list[pb.ContainerStats]:
    return list_container_stats(rt, filter=pb.ContainerStatsFilter(**wanted))


@VERSIONS
def test_stats_contain_everything_the_kernel_reports(rt: Runtime, group: Group) -> None:
    pod = pod_with_container(rt, group)
    stats = container_stats(rt, container_id=pod.container)
    cpu, memory = group.cpu(), group.memory()

    assert cpu is not None
    assert memory is not None
    assert (stats.attributes.id, stats.attributes.metadata.name) == (pod.container, "app")
    assert stats.attributes.labels == {"tier": "web"}
    assert stats.cpu.usage_core_nano_seconds.value == cpu.usage
    assert stats.memory.working_set_bytes.value == memory.working_set
    assert stats.memory.usage_bytes.value == memory.usage
    assert stats.memory.available_bytes.value == (256 << 20) - memory.working_set
    assert stats.memory.rss_bytes.value == memory.rss
    assert stats.memory.page_faults.value == memory.page_faults
    assert stats.memory.major_page_faults.value == memory.major_page_faults
    assert stats.swap.swap_usage_bytes.value == memory.swap_usage
    assert cpu.psi is not None
    assert (stats.cpu.psi.Some.Total, stats.cpu.psi.Some.Avg10) == (cpu.psi.some.total, cpu.psi.some.avg10)
    assert stats.cpu.psi.Full.Total > 0
    assert stats.io.psi.Some.Total > 0
    assert stats.memory.HasField("psi")
    for stamp in (stats.cpu.timestamp, stats.memory.timestamp, stats.swap.timestamp, stats.io.timestamp):
        assert abs(time.time_ns() - stamp) < 60 * SECOND


def test_unreported_values_are_unset(rt: Runtime, tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 5\n")
    (tmp_path / "memory.current").write_text("4096\n")
    pod = pod_with_container(rt, GroupV2(str(tmp_path)))
    stats = container_stats(rt, container_id=pod.container)

    assert (stats.cpu.usage_core_nano_seconds.value, stats.memory.working_set_bytes.value) == (5000, 4096)
    assert not stats.HasField("swap")
    assert not stats.HasField("io")
    assert not stats.HasField("writable_layer")
    assert not stats.cpu.HasField("psi")
    assert not stats.memory.HasField("available_bytes")
    assert not stats.memory.HasField("rss_bytes")


def test_a_container_has_a_rate_at_its_first_sample(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    age = time.time_ns() - rt.view.container(pod.container).state.started_at

    rate = container_stats(rt, container_id=pod.container).cpu.usage_nano_cores.value

    assert 0 < rate <= 9_214_533_000 * SECOND // age


def test_rate_covers_the_last_seconds(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    rt.stats_cache.cpu.note(pod.container, Point(time.time_ns() - 5 * SECOND, 9_214_533_000 - SECOND))

    rate = container_stats(rt, container_id=pod.container).cpu.usage_nano_cores.value

    assert rate == pytest.approx(SECOND / 5, rel=0.1)


def test_layer_is_the_last_measurement(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.stats_cache.layers[pod.container] = LayerUsage(at=7, used_bytes=4096, inodes=3, store="/var/lib/docker")

    layer = container_stats(rt, container_id=pod.container).writable_layer

    assert (layer.timestamp, layer.used_bytes.value, layer.inodes_used.value) == (7, 4096, 3)
    assert layer.fs_id.mountpoint == "/var/lib/docker"


def test_list_filters_containers(rt: Runtime) -> None:
    first = pod_with_container(rt, group_v1(), name="a")
    second = pod_with_container(rt, group_v1(), name="b")

    def found(**wanted: Any) -> list[str]:
        return [stats.attributes.id for stats in listed(rt, **wanted)]

    assert found() == [first.container, second.container]
    assert found(id=first.container[:16]) == [first.container]
    assert found(pod_sandbox_id=second.sandbox) == [second.container]
    assert found(pod_sandbox_id=second.sandbox[:16]) == [second.container]
    assert found(label_selector={"tier": "a"}) == [first.container]
    assert found(label_selector={"tier": "a"}, pod_sandbox_id=second.sandbox) == []
    assert found(id="f" * 64) == []


def test_ambiguous_id_prefix_is_an_error(rt: Runtime) -> None:
    for number in range(17):  # two begin with the same digit
        created(rt, ready_pod(rt, str(number)))
    containers, sandboxes = rt.view.containers(), rt.view.sandboxes()
    begins = {"id": [each.id[0] for each in containers], "pod_sandbox_id": [each.id[0] for each in sandboxes]}
    for part, firsts in begins.items():
        first = next(digit for digit in firsts if firsts.count(digit) > 1)
        with pytest.raises(InvalidArgument, match=rf"^filter\.{part} '{first}' fits "):
            listed(rt, **{part: first})


def test_list_contains_only_running_containers(rt: Runtime, engine: FakeEngine) -> None:
    pod = pod_with_container(rt, group_v1())
    created(rt, pod.sandbox, "created")
    exited = running(rt, pod.sandbox, "exited")
    engine.exit_container(exited)
    rt.view.refresh_container(exited)

    assert [stats.attributes.id for stats in listed(rt)] == [pod.container]


def test_exited_container_keeps_its_cpu_time_and_uses_no_memory(rt: Runtime, engine: FakeEngine) -> None:
    pod = pod_with_container(rt, group_v1())
    rt.stats_cache.cpu.note(pod.container, Point(time.time_ns(), 77))
    rt.stats_cache.layers[pod.container] = LayerUsage(at=7, used_bytes=4096, inodes=3, store="/s")
    engine.exit_container(pod.container)
    rt.view.refresh_container(pod.container)

    stats = container_stats(rt, container_id=pod.container)

    assert (stats.cpu.usage_core_nano_seconds.value, stats.cpu.usage_nano_cores.value) == (77, 0)
    assert stats.memory.HasField("working_set_bytes")
    assert stats.memory.working_set_bytes.value == 0
    assert stats.writable_layer.used_bytes.value == 4096


def test_container_that_never_ran_has_used_nothing(rt: Runtime) -> None:
    container = created(rt, ready_pod(rt))

    stats = container_stats(rt, container_id=container)

    assert (stats.attributes.id, stats.cpu.usage_core_nano_seconds.value) == (container, 0)


def test_stats_of_an_unknown_or_ambiguous_id_are_an_error(rt: Runtime) -> None:
    with pytest.raises(NotFound):
        container_stats(rt, container_id="ffff")
    pod = pod_with_container(rt, group_v1())
    assert container_stats(rt, container_id=pod.container[:12]).attributes.id == pod.container
    with pytest.raises(InvalidArgument, match="empty"):
        container_stats(rt, container_id="")


def test_vanishing_group_does_not_affect_others(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v2", tmp_path / "v2")
    stays = pod_with_container(rt, group_v2(), name="stays")
    pod_with_container(rt, group_v2(root=tmp_path / "v2"), name="goes")
    assert len(listed(rt)) == 2
    remove_group(tmp_path / "v2")

    assert [stats.attributes.id for stats in listed(rt)] == [stays.container]


def test_unreadable_values_of_a_running_container_are_unset(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v1", tmp_path / "v1")
    pod = pod_with_container(rt, group_v1(root=tmp_path / "v1"))
    rt.stats_cache.layers[pod.container] = LayerUsage(at=7, used_bytes=4096, inodes=3, store="/s")
    remove_group(tmp_path / "v1/memory")

    without_memory = container_stats(rt, container_id=pod.container)
    remove_group(tmp_path / "v1")
    stats = container_stats(rt, container_id=pod.container)

    assert without_memory.cpu.usage_core_nano_seconds.value > 0
    assert not without_memory.HasField("memory")
    assert (stats.attributes.metadata.name, stats.writable_layer.used_bytes.value) == ("app", 4096)
    assert not stats.HasField("memory")
    assert not stats.HasField("cpu")


def test_container_whose_process_is_gone_is_omitted(rt: Runtime) -> None:
    # The pids of the fake Engine are above all that the kernel gives.
    running(rt, ready_pod(rt))

    assert listed(rt) == []


def test_list_is_answered_from_the_last_pass(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    ahead = pb.ContainerStats(attributes=pb.ContainerAttributes(id=pod.container), cpu=pb.CpuUsage(timestamp=1))
    rt.stats_cache.container_stats.put(pod.container, ahead)

    assert listed(rt) == [ahead]
    assert rt.stats_cache.container_stats.requested_recently
    assert container_stats(rt, container_id=pod.container).cpu.timestamp > 1


def test_prefetched_stats_are_returned_once_and_then_with_current_cpu_time(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    memory = pb.MemoryUsage(timestamp=2, working_set_bytes=pb.UInt64Value(value=7))
    attributes = pb.ContainerAttributes(id=pod.container)
    ahead = pb.ContainerStats(attributes=attributes, cpu=pb.CpuUsage(timestamp=1), memory=memory)
    rt.stats_cache.container_stats.put(pod.container, ahead)

    [first], [second] = listed(rt), listed(rt)

    assert (first.cpu.timestamp, first.memory) == (1, memory)
    assert second.cpu.timestamp > 1
    assert second.cpu.usage_core_nano_seconds.value > 0
    assert second.memory == memory


def test_answers_never_go_back_in_time(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    [first] = listed(rt)
    late = pb.ContainerStats(attributes=first.attributes, cpu=pb.CpuUsage(timestamp=first.cpu.timestamp - 1))
    rt.stats_cache.container_stats.put(pod.container, late)  # by a pass that had begun before the question

    [second] = listed(rt)

    assert second.cpu.timestamp > first.cpu.timestamp


def test_container_that_exited_since_the_pass_is_omitted(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v2", tmp_path / "v2")
    pod = pod_with_container(rt, group_v2(root=tmp_path / "v2"))
    rt.stats_cache.container_stats.put(pod.container, pb.ContainerStats(cpu=pb.CpuUsage(timestamp=1)))
    assert len(listed(rt)) == 1
    remove_group(tmp_path / "v2")

    assert listed(rt) == []


def test_docker_is_not_queried(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v1())
    alone = without_docker(rt)

    assert container_stats(alone, container_id=pod.container).memory.usage_bytes.value > 0
    assert len(listed(alone)) == 1


def test_counters_are_capped_at_the_maximum(rt: Runtime, tmp_path: Path) -> None:
    huge = str((1 << 64) - 1)
    (tmp_path / "cpu.stat").write_text(f"usage_usec {huge}\n")
    (tmp_path / "memory.current").write_text(f"{1 << 63}\n")
    (tmp_path / "memory.stat").write_text(f"anon {huge}\npgfault -1\n")
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={huge}\n")
    pod = pod_with_container(rt, GroupV2(str(tmp_path)), cgroup_parent="")

    stats = container_stats(rt, container_id=pod.container)
    of_pod = pod_sandbox_stats(rt, sandbox_id=pod.sandbox)

    assert stats.memory.usage_bytes.value == 1 << 63
    assert stats.cpu.usage_core_nano_seconds.value == stats.cpu.psi.Some.Total == (1 << 64) - 1
    assert not stats.memory.HasField("page_faults")
    assert not stats.memory.HasField("available_bytes")
    assert of_pod.linux.memory.usage_bytes.value == (1 << 64) - 1
