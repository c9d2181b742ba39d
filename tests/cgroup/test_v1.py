"""A tree recorded on a hybrid machine."""

import shutil
from dataclasses import fields, replace
from pathlib import Path

from shim.cgroup.figures import NO_LIMIT, Cpu, CpuTimes, HugePages, Io, Limits, MemoryHistory, Pids, Pressure, Psi
from shim.cgroup.v1 import GroupV1
from tests.cgroup.removal import remove_group
from tests.cgroup.trees import DATA, POD_V1, group_v1, new_group_v1

MIB = 1 << 20


def test_cpu_with_the_pressure_of_the_unified_tree() -> None:
    pressure = Pressure(2_412_099_000, 16.35, 3.13, 0.66)

    assert group_v1().cpu() == Cpu(1_110_046_355, Psi(pressure, pressure))


def test_cpu_times() -> None:
    assert group_v1().cpu_times() == CpuTimes(
        user=1_019_965_137, system=152_000_000, periods=48, throttled_periods=18, throttled=544_483_399
    )


def test_memory() -> None:
    memory = group_v1().memory()

    assert memory is not None
    assert (memory.usage, memory.working_set) == (73_158_656, 73_158_656 - 16_777_216)
    assert (memory.limit, memory.available) == (256 * MIB, 256 * MIB - memory.working_set)
    assert (memory.rss, memory.cache, memory.mapped_file) == (55_517_184, 16_785_408, 0)
    assert (memory.active_file, memory.inactive_file) == (8192, 16 * MIB)
    assert (memory.page_faults, memory.major_page_faults) == (17_771, 0)
    assert (memory.swap_usage, memory.swap_limit, memory.swap_available) == (0, None, None)


def test_a_pod_includes_its_containers() -> None:
    pod, container = group_v1(POD_V1).memory(), group_v1().memory()

    assert pod is not None
    assert container is not None
    assert pod.rss == container.rss
    assert (pod.limit, pod.available) == (None, None)


def test_history_and_tasks() -> None:
    assert group_v1().memory_history() == MemoryHistory(
        peak=73_158_656, limit_hits=0, oom_kills=0, kernel=598_016, reservation=None
    )
    assert group_v1().pids() == Pids(1, 100)
    assert group_v1(POD_V1).pids() == Pids(1, None)
    assert group_v1().process_ids() == [32452]
    assert group_v1().io() == []


def test_swap_and_huge_pages(tmp_path: Path) -> None:
    stat = "total_swap 4096\nhierarchical_memory_limit 1000\nhierarchical_memsw_limit 9192\n"
    (tmp_path / "memory.usage_in_bytes").write_text("500\n")
    (tmp_path / "memory.stat").write_text(stat)
    (tmp_path / "hugetlb.2MB.usage_in_bytes").write_text("2097152\n")
    (tmp_path / "hugetlb.2MB.max_usage_in_bytes").write_text("4194304\n")
    (tmp_path / "hugetlb.2MB.rsvd.usage_in_bytes").write_text("0\n")
    here = str(tmp_path)
    group = GroupV1(
        cpu_directory="", cpuacct="", memory_directory=here, pids_directory="", blkio="", hugetlb=here, unified=""
    )
    memory = group.memory()

    assert memory is not None
    assert (memory.swap_usage, memory.swap_limit, memory.swap_available) == (4096, 8192, 4096)
    assert (memory.rss, memory.page_faults) == (None, None)
    assert group.huge_pages() == [HugePages(size="2MB", usage=2 * MIB, peak=4 * MIB)]
    assert group.io_psi() is None


def test_block_io_counted_only_by_bfq_is_reported(tmp_path: Path) -> None:
    (tmp_path / "blkio/c1").mkdir(parents=True)
    for name, count in (("io_service_bytes", 4096), ("io_serviced", 2)):
        (tmp_path / f"blkio/c1/blkio.throttle.{name}_recursive").write_text("Total 0\n")
        (tmp_path / f"blkio/c1/blkio.bfq.{name}_recursive").write_text(
            f"8:0 Read {count}\n8:0 Write 0\nTotal {count}\n"
        )

    assert group_v1("c1", root=tmp_path).io() == [
        Io(major=8, minor=0, read_bytes=4096, write_bytes=0, reads=2, writes=0)
    ]


def test_a_removed_group_answers_none(tmp_path: Path) -> None:
    shutil.copytree(DATA / "v1", tmp_path / "v1")
    group = group_v1(root=tmp_path / "v1")
    assert group.memory() is not None
    remove_group(tmp_path / "v1")

    assert (group.cpu(), group.memory(), group.pids(), group.io_psi()) == (None, None, None, None)
    assert (group.io(), group.huge_pages(), group.process_ids()) == ([], [], [])


def test_limits(tmp_path: Path) -> None:
    begun = new_group_v1(tmp_path, "c1")
    assert begun.limits() == Limits(
        cpu_period=100_000,
        cpu_quota=NO_LIMIT,
        cpu_shares=1024,
        cpu_weight=None,
        cpuset_cpus="0-1",
        cpuset_mems="0",
        memory=NO_LIMIT,
        memory_swap=NO_LIMIT,
    )
    limited = new_group_v1(
        tmp_path,
        "c2",
        cpu__cfs_quota_us="25000",
        memory__limit_in_bytes="4194304",
        memory__memsw__limit_in_bytes="8388608",
    ).limits()
    assert (limited.cpu_quota, limited.memory, limited.memory_swap) == (25_000, 4 * MIB, 8 * MIB)


def test_missing_limit_files_give_none(tmp_path: Path) -> None:
    gone = group_v1("gone", root=tmp_path).limits()
    assert {getattr(gone, field.name) for field in fields(Limits)} == {None}


def test_files_of_limits(tmp_path: Path) -> None:
    group = new_group_v1(tmp_path, "c1")
    assert group.memory_file(MIB) == (f"{tmp_path}/memory/c1/memory.limit_in_bytes", "1048576")
    assert group.swap_file(NO_LIMIT, memory=MIB) == (f"{tmp_path}/memory/c1/memory.memsw.limit_in_bytes", "-1")
    assert group.cpuset() == ("0-1", "0")
    assert group.unified_file("memory.high") == ""
    assert all(Path(path).is_file() for path in [*group.limit_files(), *group.huge_page_files("2MB")])
    assert len(group.limit_files()) == 8


def test_huge_pages_of_a_hybrid_machine() -> None:
    group = group_v1("c1", root=Path("/g"))
    assert group.huge_page_files("2MB") == ["/g/unified/c1/hugetlb.2MB.max", "/g/unified/c1/hugetlb.2MB.rsvd.max"]
    assert replace(group, unified="").huge_page_files("2MB") == []
