"""Threads are used again, are as many as needed, and leave when there is nothing to do."""

import queue
import threading

import pytest

from shim.base.thread_pool import CachedThreadPool
from tests.waits import wait_until

SECONDS = 10.0


def ran_in(crew: CachedThreadPool) -> threading.Thread:
    """Do something, and give the thread it was done in."""
    threads: list[threading.Thread] = []
    done = threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        done.set()

    crew.run(work)
    assert done.wait(SECONDS)
    return threads[0]


def wait_idle(crew: CachedThreadPool, *, threads: int) -> None:
    """Wait until so many threads wait for work."""
    wait_until(lambda: len(crew._idle) == threads)


def test_a_thread_is_used_again() -> None:
    crew = CachedThreadPool("test-crew")
    first = ran_in(crew)
    wait_idle(crew, threads=1)
    assert ran_in(crew) is first
    assert first.daemon


def test_work_at_the_same_time_has_threads_of_its_own() -> None:
    crew, meeting = CachedThreadPool("test-crew"), threading.Barrier(3)

    def meet() -> None:
        meeting.wait(SECONDS)

    for _ in range(2):
        crew.run(meet)
    meeting.wait(SECONDS)
    wait_idle(crew, threads=2)


def test_a_thread_leaves_when_nothing_comes() -> None:
    crew = CachedThreadPool("test-crew", idle_seconds=0.01)
    first = ran_in(crew)
    first.join(SECONDS)
    assert not first.is_alive()
    assert ran_in(crew) is not first


def test_work_that_comes_as_a_thread_leaves_is_done() -> None:
    crew = CachedThreadPool("test-crew", idle_seconds=0)
    for _ in range(300):
        ran_in(crew)


def test_work_that_fails_ends_its_thread_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    crew, threads = CachedThreadPool("test-crew"), queue.SimpleQueue[threading.Thread]()

    def broken() -> None:
        threads.put(threading.current_thread())
        raise ZeroDivisionError("a bug")

    crew.run(broken)
    assert ran_in(crew) is not None
    threads.get(timeout=SECONDS).join(SECONDS)
    assert [type(failure) for failure in reported] == [ZeroDivisionError]
