import time
from dataclasses import replace

import pytest

from shim.base.times import SECOND
from shim.cgroup.figures import Cpu, Memory
from shim.cgroup.locator import CgroupLocator
from shim.cgroup.places import groups_from_proc, mounts_from_mountinfo
from shim.cgroup.v1 import GroupV1
from shim.cgroup.v2 import GroupV2
from shim.runtime import Runtime
from shim.stats.readings import container_reading, pod_processor
from shim.stats_cache import Point
from shim.view.records import ContainerRecord
from tests.cgroup.trees import MOUNTINFO_V1, POD_V1, group_v2
from tests.pods import ready_pod, running
from tests.stats.placed import pod_with_container


@pytest.fixture
def rt(rt: Runtime) -> Runtime:
    """A node with cgroup v1."""
    return replace(rt, cgroups=CgroupLocator(mounts_from_mountinfo(MOUNTINFO_V1)))


@pytest.fixture
def container(rt: Runtime) -> ContainerRecord:
    """A running container."""
    return rt.view.container(running(rt, ready_pod(rt)))


START = 1_700_000_000 * SECOND
SLOW_MEMORY = 3 * SECOND


def busy_machine(monkeypatch: pytest.MonkeyPatch, *, held_up: list[int]) -> None:
    """Delay each read of CPU time by `nanoseconds`, and each read of memory for long."""
    passed = [START]
    cpu, memory = GroupV2.cpu, GroupV2.memory

    def slow_cpu(group: GroupV2) -> Cpu | None:
        passed.append(passed[-1] + held_up.pop(0))
        return cpu(group)

    def slow_memory(group: GroupV2) -> Memory | None:
        passed.append(passed[-1] + SLOW_MEMORY)
        return memory(group)

    monkeypatch.setattr(GroupV2, "cpu", slow_cpu)
    monkeypatch.setattr(GroupV2, "memory", slow_memory)
    monkeypatch.setattr("shim.stats.readings.time.time_ns", lambda: passed[-1])


def in_proc(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every process this /proc/<pid>/cgroup."""
    monkeypatch.setattr("shim.cgroup.places.groups_of_process", lambda _pid: groups_from_proc(text.encode()))


def test_groups_of_a_container_are_read(
    rt: Runtime, container: ContainerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/{POD_V1}/{container.id}"
    in_proc(f"9:pids:/\n4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/\n", monkeypatch)

    place = rt.cgroups.place(container.id, pid=container.state.pid)

    assert place is not None
    assert isinstance(place.group, GroupV1)
    assert isinstance(place.pod, GroupV1)
    assert place.group.memory_directory == f"/sys/fs/cgroup/memory{path}"
    assert place.pod.memory_directory == f"/sys/fs/cgroup/memory/{POD_V1}"
    assert (place.group.pids_directory, place.pod.pids_directory) == ("", "")
    assert place.path == path


def test_exiting_container_does_not_report_the_machine(
    rt: Runtime, container: ContainerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_proc("9:pids:/\n4:memory:/\n2:cpu,cpuacct:/\n0::/\n", monkeypatch)

    assert rt.cgroups.place(container.id, pid=container.state.pid) is None
    assert container_reading(rt, container) is None


def test_first_rate_of_a_pod_excludes_earlier_usage_of_its_group(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    rt.stats_cache.cpu.note(pod.container, Point(time.time_ns() - 5 * SECOND, 9_214_533_000 - SECOND))

    processor = pod_processor(rt, rt.view.sandbox(pod.sandbox))

    assert processor is not None
    assert processor.cpu.usage == 9_251_200_000
    assert processor.rate == pytest.approx(SECOND / 5, rel=0.1)


def test_cpu_time_has_the_timestamp_of_its_read(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    record = rt.view.container(pod_with_container(rt, group_v2()).container)
    quick = SECOND // 10_000
    busy_machine(monkeypatch, held_up=[5 * SECOND, quick])

    reading = container_reading(rt, record)

    assert reading is not None
    assert reading.processor.at == START + 5 * SECOND + quick // 2
    assert reading.at == START + 5 * SECOND + quick + SLOW_MEMORY


def test_quickest_read_is_reported_if_all_are_slow(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    record = rt.view.container(pod_with_container(rt, group_v2()).container)
    held_up = [9 * SECOND, 2 * SECOND, 8 * SECOND, 7 * SECOND, 6 * SECOND]
    busy_machine(monkeypatch, held_up=held_up)

    reading = container_reading(rt, record)

    assert reading is not None
    assert (reading.processor.at, held_up) == (START + 10 * SECOND, [])


def test_later_rates_of_a_pod_come_from_its_group(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    rt.stats_cache.cpu.note(pod.sandbox, Point(time.time_ns() - 5 * SECOND, 9_251_200_000 - 2 * SECOND))

    processor = pod_processor(rt, rt.view.sandbox(pod.sandbox))

    assert processor is not None
    assert processor.rate == pytest.approx(2 * SECOND / 5, rel=0.1)
