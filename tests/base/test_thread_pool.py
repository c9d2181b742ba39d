"""The pool reuses idle threads, starts new threads as needed, and ends idle threads."""

import queue
import threading

import pytest

from shim.base import thread_pool
from shim.base.thread_pool import ThreadPool
from tests.waits import wait_until

SECONDS = 10.0


def ran_in(pool: ThreadPool) -> threading.Thread:
    """Run work in the pool, and return its thread."""
    threads: list[threading.Thread] = []
    done = threading.Event()

    def work() -> None:
        threads.append(threading.current_thread())
        done.set()

    pool.run(work)
    assert done.wait(SECONDS)
    return threads[0]


def wait_idle(pool: ThreadPool, *, threads: int) -> None:
    """Wait until `threads` threads are idle."""
    wait_until(lambda: len(pool._idle) == threads)


def test_an_idle_thread_is_reused() -> None:
    pool = ThreadPool("test-pool")
    first = ran_in(pool)
    wait_idle(pool, threads=1)
    assert ran_in(pool) is first
    assert first.daemon


def test_concurrent_work_runs_in_separate_threads() -> None:
    pool, meeting = ThreadPool("test-pool"), threading.Barrier(3)

    def meet() -> None:
        meeting.wait(SECONDS)

    for _ in range(2):
        pool.run(meet)
    meeting.wait(SECONDS)
    wait_idle(pool, threads=2)


def test_an_idle_thread_ends_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "IDLE_SECONDS", 0.01)
    pool = ThreadPool("test-pool")
    first = ran_in(pool)
    first.join(SECONDS)
    assert not first.is_alive()
    assert ran_in(pool) is not first


def test_work_given_to_a_thread_at_its_timeout_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "IDLE_SECONDS", 0)
    pool = ThreadPool("test-pool")
    for _ in range(300):
        ran_in(pool)


def test_work_that_raises_ends_only_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))
    pool, threads = ThreadPool("test-pool"), queue.SimpleQueue[threading.Thread]()

    def broken() -> None:
        threads.put(threading.current_thread())
        raise ZeroDivisionError("a bug")

    pool.run(broken)
    assert ran_in(pool) is not None
    threads.get(timeout=SECONDS).join(SECONDS)
    assert [type(failure) for failure in reported] == [ZeroDivisionError]
