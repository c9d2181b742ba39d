"""Every call is run, even if there are fewer threads than calls."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from shim.base import thread_pool
from shim.cri.workers import READY, Workers
from tests.threads import no_thread_for
from tests.waits import wait_until

SECONDS = 20.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(READY + 2, name="worker")
    made.start()
    yield made
    made.shutdown()


def busy(workers: Workers, count: int) -> threading.Event:
    """Keep this many threads busy until the event is set."""
    leave, entered = threading.Event(), threading.Semaphore(0)

    def stay() -> None:
        entered.release()
        assert leave.wait(SECONDS)

    for _ in range(count):
        workers.submit(stay)
    for _ in range(count):
        assert entered.acquire(timeout=SECONDS)
    return leave


def test_results_and_failures_are_returned(workers: Workers) -> None:
    assert workers.submit(divmod, 7, 2).result(SECONDS) == (3, 1)
    assert isinstance(workers.submit(divmod, 7, 0).exception(SECONDS), ZeroDivisionError)


def test_a_slow_call_delays_no_other(workers: Workers) -> None:
    leave = busy(workers, READY + 1)
    assert workers.submit(len, "abc").result(SECONDS) == 3
    leave.set()


def test_the_number_of_threads_is_limited(workers: Workers) -> None:
    leave = busy(workers, READY + 2)
    waiting = workers.submit(len, "abc")
    assert not waiting.done()
    leave.set()
    assert waiting.result(SECONDS) == 3


def test_a_call_without_a_thread_is_run_by_the_next_idle_thread(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = busy(workers, READY)
    no_thread_for(f"worker_{READY}", monkeypatch)
    waiting = workers.submit(len, "abc")
    leave.set()
    assert waiting.result(SECONDS) == 3


def test_missing_threads_are_started_later(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once threads are available again, no call waits behind a slow call."""
    leave = busy(workers, READY)
    with monkeypatch.context() as short:
        no_thread_for(f"worker_{READY}", short)
        refused = workers.submit(len, "abc")
    assert workers.submit(len, "ab").result(SECONDS) == 2
    assert refused.result(SECONDS) == 3
    leave.set()


def test_start_fails_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    no_thread_for("worker_0", monkeypatch)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Workers(1, name="worker").start()


def worker_threads() -> int:
    return sum(thread.name.startswith("worker_") for thread in threading.enumerate())


def test_shutdown_refuses_new_calls_cancels_queued_calls_and_ends_the_threads(workers: Workers) -> None:
    leave = busy(workers, READY + 2)
    waiting = workers.submit(len, "abc")
    workers.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        workers.submit(len, "abc")
    leave.set()
    with pytest.raises(CancelledError):
        waiting.result(SECONDS)
    wait_until(lambda: worker_threads() == 0)


def test_idle_threads_beyond_the_ready_threads_end(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "IDLE_SECONDS", 0.05)
    leave = busy(workers, READY + 2)
    assert worker_threads() == READY + 2
    leave.set()
    wait_until(lambda: worker_threads() == READY)

    # All calls are still run, and as many threads are started again.
    again = busy(workers, READY + 2)
    assert worker_threads() == READY + 2
    again.set()


def test_sequential_calls_keep_no_extra_threads(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "IDLE_SECONDS", 0.05)
    busy(workers, READY + 2).set()

    def only_ready_after_calls() -> bool:
        workers.submit(len, "abc").result(SECONDS)
        return worker_threads() == READY

    wait_until(only_ready_after_calls)


def test_a_shutdown_ends_idle_threads(workers: Workers) -> None:
    busy(workers, READY + 2).set()
    workers.shutdown()
    wait_until(lambda: worker_threads() == 0)
