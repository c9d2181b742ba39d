"""Calls inside a network namespace, each in a new thread."""

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, ShimError
from shim.netns.enter import in_netns, in_netns_of
from tests.facts import open_descriptors
from tests.netns.conftest import Pod

HERE = Path("/proc/thread-self/ns/net")


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """An event for which a call under test waits. It is set at the end, so that the thread ends."""
    event = threading.Event()
    yield event
    event.set()
    for thread in netns_threads():
        thread.join()


def netns_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("netns ")]


def test_the_call_runs_in_the_namespace_and_the_caller_stays_outside(pinned: Path) -> None:
    before = HERE.stat().st_ino
    assert in_netns(pinned, lambda: HERE.stat().st_ino) == pinned.stat().st_ino != before
    assert HERE.stat().st_ino == before


def test_a_pinned_namespace_can_be_entered_after_its_process_has_ended(pinned: Path, pod: Pod) -> None:
    pod.communicate()
    assert in_netns(pinned, lambda: HERE.stat().st_ino) == pinned.stat().st_ino


def test_each_call_runs_in_a_new_thread_that_ends_with_the_call(pinned: Path) -> None:
    threads = [in_netns(pinned, threading.current_thread) for _ in range(3)]
    assert len(set(threads)) == 3
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("error", [ShimError("x"), OSError(1, "x"), SystemExit(3)], ids=repr)
def test_an_exception_of_the_call_is_raised_in_the_caller(pinned: Path, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        in_netns(pinned, fail)
    assert caught.value is error
    assert netns_threads() == []


def test_the_namespace_of_a_process_is_entered_without_a_pin(pod: Pod) -> None:
    inside = Path(f"/proc/{pod.pid}/ns/net").stat().st_ino
    before = HERE.stat().st_ino
    assert in_netns_of(pod.pid, lambda: HERE.stat().st_ino, confirmed=lambda: True) == inside != before


def test_the_namespace_is_not_entered_if_the_pid_belongs_to_another_process(pod: Pod) -> None:
    """The check runs once the namespace is open: an earlier check would prove nothing."""
    before = open_descriptors()
    seen: list[int] = []

    def confirmed() -> bool:
        seen.append(open_descriptors())
        return False

    with pytest.raises(FailedPrecondition, match=f"/proc/{pod.pid}/ns/net: another process has this pid by now"):
        in_netns_of(pod.pid, lambda: pytest.fail("it was entered"), confirmed=confirmed)
    assert seen == [before + 1]
    assert open_descriptors() == before


def test_the_namespace_of_a_process_that_has_ended_is_reported(pod: Pod) -> None:
    pod.communicate()
    with pytest.raises(ShimError, match=f"/proc/{pod.pid}/ns/net: no such file"):
        in_netns_of(pod.pid, lambda: None, confirmed=lambda: True)


@pytest.mark.parametrize("there", [True, False], ids=["plain file", "missing"])
def test_a_path_without_a_pin_is_refused(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "cri-1"
    if there:
        path.touch()
    with pytest.raises(FailedPrecondition, match=f"enter the network namespace {path}: nothing is pinned there"):
        in_netns(path, lambda: None)


def test_another_kind_of_namespace_is_refused(pinned: Path, tmp_path: Path) -> None:
    # A mount of nsfs, but not of a network namespace.
    other = pinned.with_name("uts")
    other.touch()
    subprocess.run(["mount", "--bind", "/proc/self/ns/uts", str(other)], check=True)
    with pytest.raises(ShimError, match=f"enter the network namespace {other}: invalid argument"):
        in_netns(other, lambda: None)


def test_the_call_sees_the_scope_of_the_caller(pinned: Path) -> None:
    with deadline.bound(60) as scope:
        assert in_netns(pinned, deadline.current) is scope


def test_the_deadline_ends_the_wait(pinned: Path, gate: threading.Event) -> None:
    with deadline.bound(0.05), pytest.raises(DeadlineExceeded, match=f"network namespace {pinned}"):
        in_netns(pinned, gate.wait)


def test_a_cancelled_call_ends_the_wait(pinned: Path, gate: threading.Event) -> None:
    scope = deadline.Scope()

    def go_and_wait() -> None:
        scope.cancel()
        gate.wait()

    with deadline.entered(scope), pytest.raises(Cancelled, match=f"network namespace {pinned}"):
        in_netns(pinned, go_and_wait)


def test_a_cancelled_scope_starts_no_thread(pinned: Path) -> None:
    scope = deadline.Scope()
    scope.cancel()
    called = threading.Event()
    with deadline.entered(scope), pytest.raises(Cancelled):
        in_netns(pinned, called.set)
    assert not called.is_set()
