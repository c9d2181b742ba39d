"""What the kernel's log says of kills for lack of memory: as recorded, forged, damaged, overwritten and missing."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.base.times import SECOND
from shim.cgroup.memory_kills import RECORD_SIZE, Kill, MemoryKills, kill_of
from tests.waits import wait_until

DATA = Path(__file__).parent / "data/kmsg"
ID = "5be07c" * 10 + "4d2f"
OTHER = "3fc1d5" * 10 + "abcd"
BY_SYSTEMD = "a90e57" * 10 + "0123"
ABOVE = "77ab01" * 10 + "beef"
GROUP = f"/kubepods/burstable/pod8c2f6f3e-4b5d-4a7e-9d7e-0a1b2c3d4e5f/{ID}"
LONG_AGO = 1


def summary(group: str = GROUP, *, prefix: str = "6,1042,49706164294,-", task: str = "sh", pid: int = 77) -> bytes:
    """The kernel's line about one kill."""
    text = f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group}"
    return f"{prefix};{text},task_memcg={group},task={task},pid={pid},uid=0\n".encode()


def process(
    pid: int = 77, *, prefix: str = "3,1043,49706164314,-", cause: str = "Memory cgroup out of memory"
) -> bytes:
    """The kernel's line about each process."""
    return f"{prefix};{cause}: Killed process {pid} (sh) total-vm:21028kB, anon-rss:15488kB, UID:0\n".encode()


def all_of_group(group: str = GROUP) -> bytes:
    """The kernel's line about a group that is killed as a whole."""
    return f"6,1044,49706164320,-;Tasks in {group} are going to be killed due to memory.oom.group set\n".encode()


def recorded(name: str) -> list[bytes]:
    """The records of a file, each with its continuation lines."""
    return re.findall(rb"[^ ][^\n]*\n(?: [^\n]*\n)*", (DATA / f"{name}.kmsg").read_bytes())


class KernelLog:
    """A log at a path: like /dev/kmsg, each read gives one record (pipe(2): O_DIRECT)."""

    def __init__(self) -> None:
        self._keeper, self._writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
        self.path = Path(f"/proc/self/fd/{self._keeper}")

    def write(self, *records: bytes) -> None:
        for record in records:
            os.write(self._writer, record)

    def end(self) -> None:
        for fd in (self._keeper, self._writer):
            os.close(fd)
        self._keeper = self._writer = -1

    def close(self) -> None:
        if self._writer >= 0:
            self.end()


@pytest.fixture
def kernel() -> Iterator[KernelLog]:
    log = KernelLog()
    yield log
    log.close()


def reader(kernel: KernelLog, *, has_pids: bool = True, read: Callable[[int, int], bytes] = os.read) -> MemoryKills:
    return MemoryKills(kernel.path, read=read, has_pids=lambda: has_pids)


@pytest.fixture
def kills(kernel: KernelLog) -> Iterator[MemoryKills]:
    """What reads that log."""
    made = reader(kernel)
    made.start()
    yield made
    made.stop()


def killed(kills: MemoryKills, container_id: str = ID, *, pid: int = 0, started_at: int = LONG_AGO) -> bool:
    return kills.include(container_id, pid=pid, started_at=started_at)


# Records


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v1-cgroupfs", [Kill((ID,)), Kill(pid=127665)]),
        ("v2-cgroupfs", [Kill((OTHER,)), Kill(pid=143)]),
        ("v2-systemd", [Kill((BY_SYSTEMD,)), Kill(pid=145), Kill((BY_SYSTEMD,)), Kill(pid=145), Kill(pid=146)]),
        ("v2-below", [Kill((ABOVE,)), Kill(pid=147)]),
    ],
)
def test_recorded_kills(name: str, expected: list[Kill]) -> None:
    assert [kill for kill in map(kill_of, recorded(name)) if kill is not None] == expected


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (f"/{ID}", (ID,)),
        (f"/system.slice/docker-{ID}.scope", (ID,)),
        (f"/kubepods.slice/kubepods-pod1.slice/docker-{ID}.scope/init.scope/app,task=1", (ID,)),
        (f"/docker/{OTHER}/kubelet/kubepods/pod1/{ID}", (OTHER, ID)),
    ],
    ids=["cgroupfs", "systemd", "a group below", "a node that is a container"],
)
def test_the_container_is_in_the_path(group: str, expected: tuple[str, ...]) -> None:
    for record in (summary(group), all_of_group(group)):
        assert kill_of(record) == Kill(expected)


@pytest.mark.parametrize(
    "group",
    ["/", "/user.slice", f"/{ID[:-1]}", f"/{ID}0", f"/x{ID}", f"/{ID.upper()}", f"/{ID}.service", ""],
)
def test_a_group_of_no_container(group: str) -> None:
    for record in (summary(group), all_of_group(group)):
        assert kill_of(record) is None


def test_a_group_in_which_another_one_allocated_is_not_the_victims() -> None:
    text = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={OTHER},mems_allowed=0,oom_memcg=/kubepods/pod1"
    )
    record = f"6,1,2,-;{text},task_memcg=/kubepods/pod1/{ID},task=sh,pid=5,uid=0\n"
    assert kill_of(record.encode()) == Kill((ID,))


@pytest.mark.parametrize(
    "cause", ["Memory cgroup out of memory", "Out of memory", "Out of memory (oom_kill_allocating_task)"]
)
def test_a_process_has_its_pid(cause: str) -> None:
    assert kill_of(process(4711, cause=cause)) == Kill(pid=4711)


@pytest.mark.parametrize(
    "prefix", ["14,1,2,-", "8,1,2,-", "30,1,2,-", "191,1,2,-", "a,1,2,-", "", "-6,1,2,-", " 6,1,2,-"]
)
def test_what_is_not_of_the_kernel_counts_for_nothing(prefix: str) -> None:
    assert kill_of(summary(prefix=prefix)) is None
    assert kill_of(process(prefix=prefix)) is None


@pytest.mark.parametrize("prefix", ["6,1,2,c", "6,1,2,-,caller=T812", "0,1,2,-"])
def test_other_heads_of_the_kernel(prefix: str) -> None:
    assert kill_of(summary(prefix=prefix)) == Kill((ID,))


@pytest.mark.parametrize(
    "text",
    [
        f"process 'oom-kill:constraint=x,task_memcg={GROUP},task=a' started with executable stack",
        "audit: comm=Memory cgroup out of memory: Killed process 5 (a)",
        f"cgroup: fork rejected by pids controller in {GROUP}",
        f"Memory cgroup stats for {GROUP}:",
        f"x\\x0a6,1,2,-;oom-kill:constraint=x,task_memcg={GROUP},task=a",
        f"Tasks in {GROUP} are going home",
        "Memory cgroup out of memory: Killed process 12345678901 (a)",
        "Memory cgroup out of memory: Killed process 0 (a)",
        "Memory cgroup out of memory: OOM victim 12 (a) is already exiting. Skip killing the task",
        "",
    ],
)
def test_a_line_that_only_holds_such_words(text: str) -> None:
    assert kill_of(f"4,1,2,-;{text}\n".encode()) is None


def test_continuation_lines_are_no_text() -> None:
    record = b"6,1,2,-;usb 1-1: reset\n SUBSYSTEM=usb\n DEVICE=+oom-kill:constraint=x,task_memcg=" + GROUP.encode()
    assert kill_of(record + b",task=a\n") is None
    assert kill_of(summary() + b" SUBSYSTEM=memory\n") == Kill((ID,))


def test_the_name_of_a_process_adds_no_container() -> None:
    assert kill_of(summary(task=",task_memcg=/a,task=")) == Kill((ID,))


def test_a_record_of_many_fields_takes_no_longer() -> None:
    record = b"6,1,2,-;oom-kill:constraint=" + b",task_memcg=/" * 600
    assert kill_of(record[:RECORD_SIZE]) is None


# The log


def test_kills_before_the_start_are_known(kernel: KernelLog) -> None:
    kernel.write(b"5,1,0,-;Linux version\n", summary())
    kills = reader(kernel)
    kills.start()
    assert killed(kills)
    assert not killed(kills, OTHER)
    kills.stop()


def test_what_the_kernel_has_written_is_known_at_once(kernel: KernelLog, kills: MemoryKills) -> None:
    assert not killed(kills)
    for number in range(100):
        container_id = f"{number:064x}"
        kernel.write(summary(f"/kubepods/{container_id}"))
        assert killed(kills, container_id)


def test_a_kill_whose_group_was_not_named_is_known_by_its_process(kernel: KernelLog, kills: MemoryKills) -> None:
    started_at = time.time_ns()
    kernel.write(process(4711))
    assert not killed(kills, pid=4712, started_at=started_at)
    assert not killed(kills)
    assert killed(kills, pid=4711, started_at=started_at)
    assert killed(kills), "it stays known: the exit is asked for again, without the pid"


def test_the_pid_of_a_process_that_was_killed_is_used_again(kernel: KernelLog, kills: MemoryKills) -> None:
    kernel.write(process(4711))
    assert not killed(kills)
    assert not killed(kills, pid=4711, started_at=time.time_ns() + 60 * SECOND)


def test_pids_before_the_start_are_nobodys(kernel: KernelLog) -> None:
    kernel.write(process(4711))
    kills = reader(kernel)
    kills.start()
    assert not killed(kills, pid=4711)
    kills.stop()


def test_pids_of_another_namespace_are_nobodys(kernel: KernelLog) -> None:
    kills = reader(kernel, has_pids=False)
    kills.start()
    kernel.write(process(4711), summary())
    assert not killed(kills, OTHER, pid=4711)
    assert killed(kills)
    kills.stop()


def test_the_thread_reads_without_being_asked(kernel: KernelLog) -> None:
    seen: list[bytes] = []

    def read(fd: int, size: int) -> bytes:
        seen.append(os.read(fd, size))
        return seen[-1]

    kills = reader(kernel, read=read)
    kills.start()
    kernel.write(summary())
    wait_until(lambda: seen == [summary()])
    kills.stop()


def test_records_that_were_overwritten_are_passed_over(kernel: KernelLog) -> None:
    overwritten = [BrokenPipeError(errno.EPIPE, "Broken pipe")] * 3

    def read(fd: int, size: int) -> bytes:
        if overwritten:
            raise overwritten.pop()
        return os.read(fd, size)

    kernel.write(summary())
    kills = reader(kernel, read=read)
    kills.start()
    assert killed(kills)
    kills.stop()


def test_garbage_changes_nothing(kernel: KernelLog, kills: MemoryKills) -> None:
    for record in (
        b"\x00",
        b"\n",
        b";",
        b"6,;",
        b"\xff" * RECORD_SIZE,
        b"6,1,2,-;oom-kill:constraint=\xff",
        b"9" * 5000,
    ):
        kernel.write(record[:4096])
    kernel.write(summary())
    assert killed(kills)


def test_no_more_containers_are_remembered_than_the_bound(kernel: KernelLog, kills: MemoryKills) -> None:
    ids = [f"{number:064x}" for number in range(4097)]
    for each in ids:
        kernel.write(summary(f"/kubepods/{each}"))
        killed(kills, OTHER)
    assert [killed(kills, each) for each in (ids[0], ids[1], ids[-1])] == [False, True, True]


def test_no_more_processes_are_remembered_than_the_bound(kernel: KernelLog, kills: MemoryKills) -> None:
    for pid in range(1, 4098):
        kernel.write(process(pid))
        killed(kills)
    known = [killed(kills, f"{pid:064x}", pid=pid) for pid in (1, 2, 4097)]
    assert known == [False, True, True]


@pytest.mark.parametrize("what", ["missing", "not permitted"])
def test_without_a_log_nothing_is_known(tmp_path: Path, what: str) -> None:
    path = tmp_path / "kmsg"
    if what == "not permitted":
        path.symlink_to(path)  # for root as well, it cannot be opened
    kills = MemoryKills(path)
    with capture_logs() as lines:
        kills.start()
    assert [(line["log_level"], line["path"]) for line in lines] == [("info", str(path))]
    assert not killed(kills, pid=1)
    kills.stop()


def test_a_log_that_fails_is_given_up(kernel: KernelLog) -> None:
    def read(_fd: int, _size: int) -> bytes:
        raise OSError(errno.EINVAL, "Invalid argument")

    kernel.write(summary())
    kills = reader(kernel, read=read)
    with capture_logs() as lines:
        kills.start()
        assert not killed(kills)
        assert not killed(kills)
    assert [line["log_level"] for line in lines] == ["warning"]
    kills.stop()


def test_a_log_that_ends_is_given_up(kernel: KernelLog, kills: MemoryKills) -> None:
    kernel.write(summary())
    assert killed(kills)
    kernel.end()
    assert killed(kills)
    assert not killed(kills, OTHER)
    kills.stop()
    kills.stop()
