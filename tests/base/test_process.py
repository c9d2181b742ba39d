"""Handles of real processes."""

import errno
import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.base.process import ProcessHandle, open_process, wait_all_ended
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted

SECONDS = 20.0

Child = subprocess.Popen[bytes]


@pytest.fixture
def child() -> Iterator[Child]:
    """A process that leads a group, with a child that keeps its output open."""
    script = "sleep 1000 & echo; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, process_group=0) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def full(*_: object) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_killed_process_has_ended(child: Child) -> None:
    with ProcessHandle(child.pid) as handle:
        assert not handle.has_ended()
        assert not handle.ends_within(0.01)
        handle.kill()
        assert handle.ends_within(SECONDS)
        assert handle.has_ended()
        assert child.wait(SECONDS) == -9
        handle.kill()  # no error although the process has ended
        handle.kill_group()


def test_a_wait_for_the_end_is_bound_by_the_scope(child: Child) -> None:
    with ProcessHandle(child.pid) as handle, deadline.bound(0.01):
        assert not handle.ends_within(SECONDS)


def test_a_group_ends_with_its_leader(child: Child) -> None:
    with ProcessHandle(child.pid) as handle:
        handle.kill_group()
    assert child.stdout is not None
    assert child.stdout.read() == b""  # EOF: no process has the pipe open


def test_the_group_of_a_process_that_is_not_its_leader_continues(child: Child) -> None:
    with subprocess.Popen(["sleep", "1000"], process_group=child.pid) as member, ProcessHandle(member.pid) as handle:
        handle.kill_group()
        assert member.wait(SECONDS) == -9
    assert child.poll() is None


def test_an_ended_process_has_no_handle(child: Child) -> None:
    child.kill()
    child.wait(SECONDS)
    with open_process(child.pid, what="exec 1") as handle:
        assert handle is None


def test_open_process_closes_the_handle_after_the_block(child: Child) -> None:
    with open_process(child.pid, what="exec 1") as handle:
        assert handle is not None
        descriptor = handle.fileno()
        assert os.get_blocking(descriptor)
    handle.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.get_blocking(descriptor)


def test_the_error_for_no_free_descriptor_names_the_operation(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        short.setattr(os, "pidfd_open", full)
        with pytest.raises(ResourceExhausted, match=rf"^exec 1: open process {child.pid}: too many open files"):
            open_process(child.pid, what="exec 1").__enter__()
    with ProcessHandle(child.pid) as handle, monkeypatch.context() as short:
        short.setattr(os, "eventfd", full)
        with pytest.raises(ResourceExhausted, match=r"^the end: too many open files"):
            wait_all_ended([handle], what="the end")


def test_wait_all_ended_returns_when_the_last_process_ends(child: Child) -> None:
    with (
        subprocess.Popen(["sleep", "1000"]) as other,
        ProcessHandle(other.pid) as first,
        ProcessHandle(child.pid) as second,
    ):
        first.kill()
        assert not wait_all_ended([first, second], what="the end", limit=0.01)
        kill = threading.Timer(0.05, second.kill)
        kill.start()
        assert wait_all_ended([first, second], what="the end", limit=SECONDS)
        kill.join()


def test_wait_all_ended_without_processes_returns_at_once() -> None:
    assert wait_all_ended([], what="the end", limit=0.0)


def test_wait_all_ended_ends_with_the_current_scope(child: Child) -> None:
    scope = Scope()
    cancel = threading.Timer(0.05, scope.cancel)
    with ProcessHandle(child.pid) as handle:
        with deadline.bound(0.01), pytest.raises(DeadlineExceeded, match=r"^the end: "):
            wait_all_ended([handle], what="the end", limit=SECONDS)
        cancel.start()
        with deadline.entered(scope), pytest.raises(Cancelled, match=r"^the end: "):
            wait_all_ended([handle], what="the end", limit=SECONDS)
    cancel.join()


def test_a_handle_never_signals_a_process_that_reuses_the_pid(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal by pid would kill the process that reuses the pid."""
    with subprocess.Popen(["sleep", "1000"]) as other:
        with ProcessHandle(other.pid) as handle:
            other.kill()
            other.wait(SECONDS)
            monkeypatch.setattr(handle, "pid", child.pid)  # as if the pid were reused
            handle.kill_group()
        assert child.poll() is None
