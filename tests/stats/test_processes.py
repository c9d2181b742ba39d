import os
import resource
import socket
import subprocess
from pathlib import Path

import pytest

from shim.stats import processes as module
from shim.stats.processes import Processes, processes, soft_limits


def test_real_process_is_counted() -> None:
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as sleeping:
        try:
            found = processes([sleeping.pid])
        finally:
            sleeping.kill()

    assert (found.count, found.threads) == (1, 1)
    assert found.descriptors >= 3
    assert found.sockets <= found.descriptors - 2


def test_sockets_are_distinguished_from_files() -> None:
    before = processes([os.getpid()])
    with socket.socket(), open(os.devnull):  # noqa: PTH123 - any descriptor will do
        after = processes([os.getpid()])

    assert (after.descriptors - before.descriptors, after.sockets - before.sockets) == (2, 1)


def test_processes_are_added_up_without_exited_processes(tmp_path: Path) -> None:
    for pid, threads in ((1, 3), (2, 4)):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "status").write_text(f"Name:\tx\nThreads:\t{threads}\nSigQ:\t0/1\n")
        (tmp_path / str(pid) / "fd/0").symlink_to("socket:[1]")
    (tmp_path / "2/fd/1").symlink_to("/dev/null")

    assert processes([1, 2, 3], proc=str(tmp_path)) == Processes(2, 7, 3, 2)


def test_checked_descriptors_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DESCRIPTORS", 2)
    (tmp_path / "1/fd").mkdir(parents=True)
    (tmp_path / "1/status").write_text("Name:\tx\nThreads:\t1\n")
    for number in range(5):
        (tmp_path / f"1/fd/{number}").symlink_to("socket:[1]")

    assert processes([1], proc=str(tmp_path)) == Processes(1, 1, 5, 2)


def test_checked_processes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROCESSES", 2)
    for pid in range(1, 6):
        (tmp_path / f"{pid}/fd").mkdir(parents=True)
        (tmp_path / f"{pid}/status").write_text("Name:\tx\nThreads:\t3\n")
        (tmp_path / f"{pid}/fd/0").symlink_to("socket:[1]")

    assert processes(range(1, 6), proc=str(tmp_path)) == Processes(5, 9, 2, 2)


def test_truncated_status_counts_as_a_single_thread(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/status").write_text("Name:\tx\nThreads:")

    assert processes([1], proc=str(tmp_path)).threads == 1


def test_soft_limits_are_read() -> None:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert soft_limits(os.getpid()) == {"max_open_files": limit}
    assert soft_limits(2**22 + 1) == {}


def test_unlimited_is_omitted(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1/limits").write_text("Max open files            unlimited            unlimited            files\n")

    assert soft_limits(1, proc=str(tmp_path)) == {}
