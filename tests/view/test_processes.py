"""Real processes stand for those of containers; only what no process of a test can be comes from a made-up /proc."""

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
    """A process that runs."""
    child = subprocess.Popen(["sleep", "600"])
    yield child
    child.kill()
    child.wait()


def test_one_that_runs(sleeper: subprocess.Popen[bytes]) -> None:
    assert not process_ended(record(sleeper.pid))


def test_one_that_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()
    assert process_ended(record(sleeper.pid))


def test_a_zombie_has_ended(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_ended(record(sleeper.pid))


_EXIT = {"x86_64": 60, "aarch64": 93, "riscv64": 93, "ppc64le": 1, "s390x": 1}
"""The number of the system call `exit`, which ends the thread that makes it, and no other."""

_WITHOUT_MAIN_THREAD = """
import ctypes, os, sys, threading

threading.Thread(target=lambda: os._exit(len(sys.stdin.read()))).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""


@pytest.mark.skipif(platform.machine() not in _EXIT, reason="how a thread alone ends here is not known")
def test_one_whose_main_thread_alone_has_ended() -> None:
    number = str(_EXIT[platform.machine()])
    with subprocess.Popen([sys.executable, "-c", _WITHOUT_MAIN_THREAD, number], stdin=subprocess.PIPE) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        assert not process_ended(record(child.pid))

        assert child.stdin is not None
        child.stdin.close()  # which the other thread waits for
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process_ended(record(child.pid))


def test_one_that_is_being_collected(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_text(f"77 (a) X {'0 ' * 18}500 0\n")
    assert process_ended(record(77), proc=tmp_path)


def test_a_pid_of_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert process_ended(record(sleeper.pid, started_at=time.time_ns() - HOUR_NS))


@pytest.mark.parametrize(
    ("pid", "state"),
    [(0, pb.CONTAINER_RUNNING), (2**22 + 1, pb.CONTAINER_EXITED), (2**22 + 1, pb.CONTAINER_CREATED)],
    ids=["pid unknown", "exited", "created"],
)
def test_what_does_not_run_is_not_waited_for(pid: int, state: pb.ContainerState) -> None:
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
def test_another_process_is_known_by_time_and_cgroup(tmp_path: Path, later_ns: int, cgroup: str, ended: bool) -> None:
    ticks = 500
    began = boot_time() + ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_text(f"77 (a ) name) S {'0 ' * 18}{ticks} 0\n")
    (tmp_path / "77/cgroup").write_text(f"4:memory:{cgroup}\n")
    assert process_ended(record(77, started_at=began - later_ns), proc=tmp_path) is ended


ODD_NAME = b"a) Z 1\n\x0b\x1c\r\x85\xe2\x80\xa8\xff( S"
"""Of a process or a control group, which programs choose."""


def test_no_name_of_a_process_or_group_hides_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77/stat").write_bytes(b"77 (%b) S %b500 0\n" % (ODD_NAME, b"0 " * 18))
    (tmp_path / "77/cgroup").write_bytes(b"0::/pod/%b/%b\n" % (b"c" * 64, ODD_NAME.replace(b"\n", b"")))
    assert not process_ended(record(77, started_at=time.time_ns() - HOUR_NS), proc=tmp_path)
    assert is_process_of(record(77), proc=tmp_path)


def test_when_the_kernel_began() -> None:
    words = Path("/proc/stat").read_text().split()
    assert abs(boot_time() - int(words[words.index("btime") + 1]) * 10**9) < 2 * 10**9  # which is in whole seconds


def test_a_process_of_unknown_state_has_not_ended(tmp_path: Path) -> None:
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
def test_a_pid_is_of_its_container_by_the_cgroup(tmp_path: Path, pid: int, cgroup: str, certain: bool) -> None:
    known = record(pid)
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_text("4:memory:" + cgroup.format(id=known.id))

    assert is_process_of(known, proc=tmp_path) is certain
