"""A tree below a systemd slice, with every controller."""

import shutil
from dataclasses import fields
from pathlib import Path

from shim.cgroup.figures import NO_LIMIT, Cpu, CpuTimes, HugePages, Io, Limits, MemoryHistory, Pids, Pressure, Psi
from tests.cgroup.removal import remove_group
from tests.cgroup.trees import DATA, POD_V2, group_v2, new_group_v2

MIB = 1 << 20


def test_cpu() -> None:
    psi = Psi(Pressure(4_219_034_000, 1.53, 2.07, 0.61), Pressure(3_910_442_000, 1.21, 1.80, 0.52))

    assert group_v2().cpu() == Cpu(9_214_533_000, psi)
    assert group_v2().cpu_times() == CpuTimes(
        user=8_010_211_000, system=1_204_322_000, periods=312, throttled_periods=45, throttled=1_733_210_000
    )


def test_memory_and_swap() -> None:
    memory = group_v2().memory()

    assert memory is not None
    assert (memory.usage, memory.working_set) == (147_820_544, 147_820_544 - 30_408_704)
    assert (memory.limit, memory.available) == (256 * MIB, 256 * MIB - memory.working_set)
    assert (memory.rss, memory.cache, memory.mapped_file) == (104_923_136, 40_415_232, 1_081_344)
    assert (memory.page_faults, memory.major_page_faults) == (88_213, 64)
    assert (memory.swap_usage, memory.swap_limit, memory.swap_available) == (4 * MIB, 64 * MIB, 60 * MIB)
    assert memory.psi is not None
    assert memory.psi.some == Pressure(180_233_000, 0.0, 0.12, 0.04)


def test_without_limits() -> None:
    memory = group_v2(POD_V2).memory()

    assert memory is not None
    assert (memory.limit, memory.available, memory.swap_limit, memory.swap_available) == (None, None, None, None)
    assert group_v2(POD_V2).pids() == Pids(8, None)


def test_history() -> None:
    assert group_v2().memory_history() == MemoryHistory(
        peak=192 * MIB, limit_hits=17, oom_kills=1, kernel=2_420_736, reservation=None
    )


def test_kernel_memory_before_linux_5_18_is_summed(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text("kernel_stack 100\nslab 20\npercpu 3\npagetables 4\n")
    (tmp_path / "memory.low").write_text("4096\n")

    history = group_v2("", root=tmp_path).memory_history()

    assert (history.kernel, history.peak, history.reservation) == (127, None, 4096)


def test_devices_huge_pages_and_tasks() -> None:
    group = group_v2()

    assert group.io() == [
        Io(major=8, minor=0, read_bytes=9_101_312, write_bytes=50 * MIB, reads=412, writes=1030),
        Io(major=253, minor=0, read_bytes=4096, write_bytes=8192, reads=1, writes=2),
    ]
    assert sorted(group.huge_pages(), key=lambda pages: pages.size) == [
        HugePages(size="1GB", usage=0, peak=None),
        HugePages(size="2MB", usage=4 * MIB, peak=None),
    ]
    assert (group.pids(), group.process_ids()) == (Pids(7, 4096), [4711, 4712])
    psi = group.io_psi()
    assert psi is not None
    assert psi.some.total == 951_201_000


def test_a_removed_group_answers_none(tmp_path: Path) -> None:
    shutil.copytree(DATA / "v2", tmp_path / "v2")
    group = group_v2(root=tmp_path / "v2")
    assert group.memory() is not None
    remove_group(tmp_path / "v2")

    assert (group.cpu(), group.memory(), group.pids(), group.io_psi()) == (None, None, None, None)
    assert (group.io(), group.huge_pages(), group.process_ids()) == ([], [], [])


def test_a_truncated_file_gives_its_complete_lines(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("100\n")
    (tmp_path / "memory.stat").write_text("anon 30\nfile 60\ninactive_fi")
    (tmp_path / "memory.pressure").write_text("some avg10=0.00 avg60=0.12 avg300=0.04 to")

    memory = group_v2("", root=tmp_path).memory()

    assert memory is not None
    assert (memory.working_set, memory.rss, memory.inactive_file, memory.psi) == (100, 30, None, None)


def test_limits(tmp_path: Path) -> None:
    assert new_group_v2(tmp_path, "c1").limits() == Limits(
        cpu_period=100_000,
        cpu_quota=NO_LIMIT,
        cpu_shares=None,
        cpu_weight=100,
        cpuset_cpus="",
        cpuset_mems="",
        memory=NO_LIMIT,
        memory_swap=NO_LIMIT,
    )
    limited = new_group_v2(
        tmp_path, "c2", cpu__max="25000 50000", memory__max="4194304", memory__swap__max="0"
    ).limits()
    assert (limited.cpu_quota, limited.cpu_period, limited.memory, limited.memory_swap) == (
        25_000,
        50_000,
        4 * MIB,
        4 * MIB,
    )


def test_missing_limit_files_give_none(tmp_path: Path) -> None:
    gone = group_v2("gone", root=tmp_path).limits()
    assert {getattr(gone, field.name) for field in fields(Limits)} == {None}


def test_files_of_limits(tmp_path: Path) -> None:
    group = new_group_v2(tmp_path, "c1")
    assert group.memory_file(MIB) == (f"{tmp_path}/c1/memory.max", "1048576")
    assert group.memory_file(NO_LIMIT)[1] == "max"
    swap = f"{tmp_path}/c1/memory.swap.max"
    assert group.swap_file(3 * MIB, memory=MIB) == (swap, "2097152")
    assert group.swap_file(NO_LIMIT, memory=MIB) == (swap, "max")
    assert group.cpuset() == ("0-1", "0")
    assert group.unified_file("memory.high") == f"{tmp_path}/c1/memory.high"
    assert all(Path(path).is_file() for path in [*group.limit_files(), *group.huge_page_files("2MB")])
