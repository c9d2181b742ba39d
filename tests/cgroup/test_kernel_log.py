"""OOM kills in the kernel's log: recorded, forged, malformed, overwritten and missing records."""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.base.times import SECOND
from shim.cgroup.kernel_log import RECORD_SIZE, Kill, OomKills, kill_of
from tests.waits import wait_until

DATA = Path(__file__).parent / "data/kmsg"
ID = "5be07c" * 10 + "4d2f"
OTHER = "3fc1d5" * 10 + "abcd"
BY_SYSTEMD = "a90e57" * 10 + "0123"
ABOVE = "77ab01" * 10 + "beef"
GROUP = f"/kubepods/burstable/pod8c2f6f3e-4b5d-4a7e-9d7e-0a1b2c3d4e5f/{ID}"
LONG_AGO = 1


def summary(group: str = GROUP, *, prefix: str = "6,1042,49706164294,-", task: str = "sh", pid: int = 77) -> bytes:
    """The kernel's line about a kill."""
    text = f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group}"
    return f"{prefix};{text},task_memcg={group},task={task},pid={pid},uid=0\n".encode()


def process(
    pid: int = 77, *, prefix: str = "3,1043,49706164314,-", cause: str = "Memory cgroup out of memory"
) -> bytes:
    """The kernel's line about a killed process."""
    return f"{prefix};{cause}: Killed process {pid} (sh) total-vm:21028kB, anon-rss:15488kB, UID:0\n".encode()


def all_of_group(group: str = GROUP) -> bytes:
    """The kernel's line about a group that is killed as a whole."""
    return f"6,1044,49706164320,-;Tasks in {group} are going to be killed due to memory.oom.group set\n".encode()


def recorded(name: str) -> list[bytes]:
    """Return the records of a file, each with its continuation lines."""
    return re.findall(rb"[^ ][^\n]*\n(?: [^\n]*\n)*", (DATA / f"{name}.kmsg").read_bytes())


class KernelLog:
    """A log at a path. As with /dev/kmsg, each read returns a record (pipe(2): O_DIRECT)."""

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


def reader(kernel: KernelLog, *, has_pids: bool = True, read: Callable[[int, int], bytes] = os.read) -> OomKills:
    return OomKills(kernel.path, read=read, has_pids=lambda: has_pids)


@pytest.fixture
def kills(kernel: KernelLog) -> Iterator[OomKills]:
    """The started reader of that log."""
    made = reader(kernel)
    made.start()
    yield made
    made.stop()


def killed(kills: OomKills, container_id: str = ID, *, pid: int = 0, started_at: int = LONG_AGO) -> bool:
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
def test_recorded_kills_are_recognized(name: str, expected: list[Kill]) -> None:
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
def test_container_ids_are_found_in_the_path(group: str, expected: tuple[str, ...]) -> None:
    for record in (summary(group), all_of_group(group)):
        assert kill_of(record) == Kill(expected)


@pytest.mark.parametrize(
    "group",
    ["/", "/user.slice", f"/{ID[:-1]}", f"/{ID}0", f"/x{ID}", f"/{ID.upper()}", f"/{ID}.service", ""],
)
def test_a_group_without_a_container_is_no_kill(group: str) -> None:
    for record in (summary(group), all_of_group(group)):
        assert kill_of(record) is None


def test_the_group_that_allocated_is_not_taken_for_the_victim() -> None:
    text = (
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={OTHER},mems_allowed=0,oom_memcg=/kubepods/pod1"
    )
    record = f"6,1,2,-;{text},task_memcg=/kubepods/pod1/{ID},task=sh,pid=5,uid=0\n"
    assert kill_of(record.encode()) == Kill((ID,))


@pytest.mark.parametrize(
    "cause", ["Memory cgroup out of memory", "Out of memory", "Out of memory (oom_kill_allocating_task)"]
)
def test_the_pid_of_a_killed_process_is_parsed(cause: str) -> None:
    assert kill_of(process(4711, cause=cause)) == Kill(pid=4711)


@pytest.mark.parametrize(
    "prefix", ["14,1,2,-", "8,1,2,-", "30,1,2,-", "191,1,2,-", "a,1,2,-", "", "-6,1,2,-", " 6,1,2,-"]
)
def test_records_of_other_facilities_are_ignored(prefix: str) -> None:
    assert kill_of(summary(prefix=prefix)) is None
    assert kill_of(process(prefix=prefix)) is None


@pytest.mark.parametrize("prefix", ["6,1,2,c", "6,1,2,-,caller=T812", "0,1,2,-"])
def test_kernel_records_of_any_level_are_read(prefix: str) -> None:
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
def test_a_kill_message_inside_another_text_is_ignored(text: str) -> None:
    assert kill_of(f"4,1,2,-;{text}\n".encode()) is None


def test_continuation_lines_are_ignored() -> None:
    record = b"6,1,2,-;usb 1-1: reset\n SUBSYSTEM=usb\n DEVICE=+oom-kill:constraint=x,task_memcg=" + GROUP.encode()
    assert kill_of(record + b",task=a\n") is None
    assert kill_of(summary() + b" SUBSYSTEM=memory\n") == Kill((ID,))


def test_a_container_id_in_a_process_name_is_ignored() -> None:
    assert kill_of(summary(task=",task_memcg=/a,task=")) == Kill((ID,))


def test_a_record_with_many_fields_is_parsed_in_linear_time() -> None:
    record = b"6,1,2,-;oom-kill:constraint=" + b",task_memcg=/" * 600
    assert kill_of(record[:RECORD_SIZE]) is None


# The log


def test_kills_before_the_start_of_the_server_are_known(kernel: KernelLog) -> None:
    kernel.write(b"5,1,0,-;Linux version\n", summary())
    kills = reader(kernel)
    kills.start()
    assert killed(kills)
    assert not killed(kills, OTHER)
    kills.stop()


def test_a_logged_kill_is_known_at_once(kernel: KernelLog, kills: OomKills) -> None:
    assert not killed(kills)
    for number in range(100):
        container_id = f"{number:064x}"
        kernel.write(summary(f"/kubepods/{container_id}"))
        assert killed(kills, container_id)


def test_a_kill_without_a_group_is_found_by_pid(kernel: KernelLog, kills: OomKills) -> None:
    started_at = time.time_ns()
    kernel.write(process(4711))
    assert not killed(kills, pid=4712, started_at=started_at)
    assert not killed(kills)
    assert killed(kills, pid=4711, started_at=started_at)
    assert killed(kills), "it stays known: the exit is asked for again, without the pid"


def test_a_reused_pid_is_not_a_kill(kernel: KernelLog, kills: OomKills) -> None:
    kernel.write(process(4711))
    assert not killed(kills)
    assert not killed(kills, pid=4711, started_at=time.time_ns() + 60 * SECOND)


def test_pids_logged_before_the_start_are_ignored(kernel: KernelLog) -> None:
    kernel.write(process(4711))
    kills = reader(kernel)
    kills.start()
    assert not killed(kills, pid=4711)
    kills.stop()


def test_pids_of_another_namespace_are_ignored(kernel: KernelLog) -> None:
    kills = reader(kernel, has_pids=False)
    kills.start()
    kernel.write(process(4711), summary())
    assert not killed(kills, OTHER, pid=4711)
    assert killed(kills)
    kills.stop()


def test_the_thread_reads_new_records(kernel: KernelLog) -> None:
    seen: list[bytes] = []

    def read(fd: int, size: int) -> bytes:
        seen.append(os.read(fd, size))
        return seen[-1]

    kills = reader(kernel, read=read)
    kills.start()
    kernel.write(summary())
    wait_until(lambda: seen == [summary()])
    kills.stop()


def test_overwritten_records_are_skipped(kernel: KernelLog) -> None:
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


def test_malformed_records_are_ignored(kernel: KernelLog, kills: OomKills) -> None:
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


def test_the_number_of_remembered_containers_is_bounded(kernel: KernelLog, kills: OomKills) -> None:
    ids = [f"{number:064x}" for number in range(4097)]
    for each in ids:
        kernel.write(summary(f"/kubepods/{each}"))
        killed(kills, OTHER)
    assert [killed(kills, each) for each in (ids[0], ids[1], ids[-1])] == [False, True, True]


def test_the_number_of_remembered_processes_is_bounded(kernel: KernelLog, kills: OomKills) -> None:
    for pid in range(1, 4098):
        kernel.write(process(pid))
        killed(kills)
    known = [killed(kills, f"{pid:064x}", pid=pid) for pid in (1, 2, 4097)]
    assert known == [False, True, True]


@pytest.mark.parametrize("what", ["missing", "not permitted"])
def test_no_kill_is_known_without_a_readable_log(tmp_path: Path, what: str) -> None:
    path = tmp_path / "kmsg"
    if what == "not permitted":
        path.symlink_to(path)  # not even root can open it
    kills = OomKills(path)
    with capture_logs() as lines:
        kills.start()
    assert [(line["log_level"], line["path"]) for line in lines] == [("info", str(path))]
    assert not killed(kills, pid=1)
    kills.stop()


def test_a_log_that_fails_is_not_read_again(kernel: KernelLog) -> None:
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


def test_a_log_that_ends_is_not_read_again(kernel: KernelLog, kills: OomKills) -> None:
    kernel.write(summary())
    assert killed(kills)
    kernel.end()
    assert killed(kills)
    assert not killed(kills, OTHER)
    kills.stop()
    kills.stop()
