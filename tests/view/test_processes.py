"""Real processes stand for processes of containers; a fake /proc has states that no test process can be in."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.view.processes import SLACK_NS, boot_time, is_process_of, process_ended
from shim.view.records import ContainerRecord
from tests.view.samples import container, container_state
from tests.waits import wait_until

HOUR_NS = 3600 * 10**9


def record(
    pid: int, *, started_at: int | None = None, state: pb.ContainerState = pb.CONTAINER_RUNNING
) -> ContainerRecord:
    started_at = time.time_ns() if started_at is None else started_at
    return container("c" * 64, state=replace(container_state(state), pid=pid, started_at=started_at))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A running process."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def test_a_running_process_has_not_ended(sleeper: subprocess.Popen[bytes]) -> None:
    assert not process_ended(record(sleeper.pid))


def test_a_missing_process_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert process_ended(record(sleeper.pid))


def test_a_zombie_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_ended(record(sleeper.pid))


_EXIT = {"x86_64": 60, "aarch64": 93, "riscv64": 93, "ppc64le": 1, "s390x": 1}
"""The number of the system call `exit`, which ends only the calling thread."""

_WITHOUT_MAIN_THREAD = """
import ctypes, os, sys, threading

threading.Thread(target=lambda: os._exit(len(sys.stdin.read()))).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""


@pytest.mark.skipif(platform.machine() not in _EXIT, reason="the number of exit(2) is unknown here")
def test_a_process_without_its_main_thread_has_not_ended() -> None:
    number = str(_EXIT[platform.machine()])
    with subprocess.Popen([sys.executable, "-c", _WITHOUT_MAIN_THREAD, number], stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert not process_ended(record(child.pid))

        assert child.stdin is not None
        child.stdin.close()  # the other thread waits for this
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_ended(record(child.pid))


def test_a_process_that_is_being_reaped_has_ended(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_text(f"77 (a) X {'0 ' * 18}500 0\n")
    assert process_ended(record(77), proc=tmp_path)


def test_a_reused_pid_counts_as_ended(sleeper: subprocess.Popen[bytes]) -> None:
    assert process_ended(record(sleeper.pid, started_at=time.time_ns() - HOUR_NS))


@pytest.mark.parametrize(
    ("pid", "state"),
    [(0, pb.CONTAINER_RUNNING), (2**22 + 1, pb.CONTAINER_EXITED), (2**22 + 1, pb.CONTAINER_CREATED)],
    ids=["pid unknown", "exited", "created"],
)
def test_a_container_that_is_not_running_has_no_process(pid: int, state: pb.ContainerState) -> None:
    assert not process_ended(record(pid, state=state))


@pytest.mark.parametrize(
    ("later_ns", "cgroup", "ended"),
    [
        (-HOUR_NS, "/kubepods/other", False),
        (SLACK_NS // 2, "/kubepods/other", False),
        (HOUR_NS, "/kubepods/other", True),
        (HOUR_NS, "/kubepods/pod1/" + "c" * 64, False),
        (HOUR_NS, "/kubepods.slice/docker-" + "c" * 64 + ".scope/init.scope", False),
    ],
    ids=["an earlier one", "clock a little off", "another", "clock set forward", "clock set forward, systemd"],
)
def test_a_reused_pid_differs_in_start_time_and_cgroup(tmp_path: Path, later_ns: int, cgroup: str, ended: bool) -> None:
    ticks = 500
    began = boot_time() + ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_text(f"77 (a ) name) S {'0 ' * 18}{ticks} 0\n")
    (tmp_path / "77/cgroup").write_text(f"4:memory:{cgroup}\n")
    assert process_ended(record(77, started_at=began - later_ns), proc=tmp_path) is ended


ODD_NAME = b"a) Z 1\n\x0b\x1c\r\x85\xe2\x80\xa8\xff( S"
"""Names of processes or control groups, which programs choose."""


def test_names_of_processes_and_groups_do_not_break_the_parser(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_bytes(b"77 (%b) S %b500 0\n" % (ODD_NAME, b"0 " * 18))
    (tmp_path / "77/cgroup").write_bytes(b"0::/pod/%b/%b\n" % (b"c" * 64, ODD_NAME.replace(b"\n", b"")))
    assert not process_ended(record(77, started_at=time.time_ns() - HOUR_NS), proc=tmp_path)
    assert is_process_of(record(77), proc=tmp_path)


def test_boot_time_agrees_with_proc_stat() -> None:
    words = Path("/proc/stat").read_text().split()
    assert abs(boot_time() - int(words[words.index("btime") + 1]) * 10**9) < 2 * 10**9  # btime has whole seconds


def test_an_unreadable_process_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_text("77 (a) S")
    assert not process_ended(record(77), proc=tmp_path)


@pytest.mark.parametrize(
    ("pid", "cgroup", "certain"),
    [
        (77, "/kubepods/{id}", True),
        (77, "/system.slice/docker-{id}.scope", True),
        (77, "/user.slice", False),
        (78, "/kubepods/{id}", False),
        (0, "/kubepods/{id}", False),
    ],
    ids=["cgroupfs", "systemd", "of something else", "gone", "unknown"],
)
def test_the_cgroup_tells_whether_a_pid_belongs_to_a_container(
    tmp_path: Path, pid: int, cgroup: str, certain: bool
) -> None:
    known = record(pid)
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_text("4:memory:" + cgroup.format(id=known.id))

    assert is_process_of(known, proc=tmp_path) is certain
