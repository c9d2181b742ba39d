"""Recorded groups of version 2, compared with Docker's answers at the same moment."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from shim.cgroup.figures import Pids
from shim.cgroup.places import (
    UNIFIED,
    Group,
    Mount,
    cut_behind,
    group_at,
    groups_from_proc,
    mounts_from_mountinfo,
    parents,
)
from tests.cgroup.trees import DATA

MIB = 1 << 20


@dataclass(frozen=True)
class Recorded:
    """A container of a pod, frozen while it was recorded."""

    container: Group
    pod: Group
    docker: dict[str, Any]


@pytest.fixture(params=["cgroupfs", "systemd"])
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """Find the groups as on a machine, in a tree at another path."""
    home = DATA / "recorded" / request.param
    about = msgspec.json.decode((home / "docker.json").read_bytes())
    mounts = mounts_from_mountinfo((home / "mountinfo").read_bytes())
    assert mounts[UNIFIED] == Mount(point="/sys/fs/cgroup", root="/")
    here = {UNIFIED: Mount(point=str(home / "tree"), root="/")}
    groups = cut_behind(groups_from_proc((home / "proc-cgroup").read_bytes()), about["container"])
    return Recorded(group_at(groups, here), group_at(parents(groups), here), about["stats"])


def test_cpu(recorded: Recorded) -> None:
    reported = recorded.docker["cpu_stats"]
    cpu, times = recorded.container.cpu(), recorded.container.cpu_times()

    assert cpu is not None
    assert cpu.usage == reported["cpu_usage"]["total_usage"]
    assert (times.user, times.system) == (
        reported["cpu_usage"]["usage_in_usermode"],
        reported["cpu_usage"]["usage_in_kernelmode"],
    )
    throttling = reported["throttling_data"]
    assert (times.throttled_periods, times.throttled) == (throttling["throttled_periods"], throttling["throttled_time"])
    # A period still ends in a frozen group.
    assert times.periods in (throttling["periods"], throttling["periods"] + 1)
    assert times.throttled_periods


def test_memory_and_swap(recorded: Recorded) -> None:
    reported = recorded.docker["memory_stats"]
    memory, history = recorded.container.memory(), recorded.container.memory_history()

    assert memory is not None
    assert (memory.usage, memory.limit) == (reported["usage"], reported["limit"]) == (reported["usage"], 128 * MIB)
    stat = reported["stats"]
    assert (memory.rss, memory.cache, memory.mapped_file) == (stat["anon"], stat["file"], stat["file_mapped"])
    assert (memory.active_file, memory.inactive_file) == (stat["active_file"], stat["inactive_file"])
    assert (memory.page_faults, memory.major_page_faults) == (stat["pgfault"], stat["pgmajfault"])
    assert memory.working_set == memory.usage - stat["inactive_file"]
    assert memory.swap_usage is not None
    assert 0 < memory.swap_usage < 64 * MIB
    assert memory.swap_limit == 64 * MIB
    assert history.limit_hits
    assert (history.oom_kills, history.reservation) == (0, None)
    # At least the page tables.
    assert history.kernel is not None
    assert 0 < stat["kernel_stack"] + stat["slab"] <= history.kernel < memory.usage


def test_pressure(recorded: Recorded) -> None:
    cpu, memory = recorded.container.cpu(), recorded.container.memory()

    assert cpu is not None
    assert memory is not None
    for psi in (cpu.psi, memory.psi, recorded.container.io_psi()):
        assert psi is not None
        assert psi.full is not None
        assert psi.some.total >= psi.full.total > 0
        assert psi.some.avg300 >= psi.full.avg300 >= 0


def test_devices_huge_pages_and_tasks(recorded: Recorded) -> None:
    found = {
        (io.major, io.minor, operation): count
        for io in recorded.container.io()
        for operation, count in (("read", io.read_bytes), ("write", io.write_bytes))
    }
    reported = recorded.docker["blkio_stats"]["io_service_bytes_recursive"]

    assert found == {(entry["major"], entry["minor"], entry["op"]): entry["value"] for entry in reported}
    assert 16 * MIB in found.values()
    assert recorded.container.pids() == Pids(recorded.docker["pids_stats"]["current"], 100)
    assert len(recorded.container.process_ids()) == recorded.docker["pids_stats"]["current"]
    assert {(pages.size, pages.usage) for pages in recorded.container.huge_pages()} == {("1GB", 0), ("2MB", 0)}


def test_the_pods_group_counts_its_containers(recorded: Recorded) -> None:
    memory, pod = recorded.container.memory(), recorded.pod.memory()
    cpu, of_pod = recorded.container.cpu(), recorded.pod.cpu()

    assert memory is not None
    assert pod is not None
    assert cpu is not None
    assert of_pod is not None
    assert pod.usage >= memory.usage
    assert (pod.rss, pod.swap_usage) == (memory.rss, memory.swap_usage)
    assert (pod.limit, pod.available, pod.swap_limit) == (None, None, None)
    assert of_pod.usage >= cpu.usage
    assert recorded.pod.process_ids() == recorded.container.process_ids() != []
