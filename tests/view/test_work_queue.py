"""Each added key is returned, never to two workers at a time, and failing keys leave workers for the others."""

import threading
import time
from queue import SimpleQueue

import pytest

from shim.view.work_queue import WorkQueue
from tests.waits import wait_until


def work_queue(*, slow_workers: int = 1, retry_seconds: float = 0.0) -> WorkQueue:
    return WorkQueue(slow_workers=slow_workers, retry_seconds=retry_seconds)


def fail(queue: WorkQueue, key: str) -> None:
    """End the processing of a key as a worker does after a failure."""
    queue.add_rate_limited(key)
    queue.done(key)


def put_off(queue: WorkQueue, key: str, seconds: float) -> None:
    """End the processing of a key as a worker does while Docker is unavailable."""

    queue.add_after(key, seconds)
    queue.done(key)


def test_a_key_added_several_times_is_returned_once() -> None:
    queue = work_queue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [queue.get(), queue.get()] == ["a", "b"]
    queue.done("a")
    queue.add("c")
    assert queue.get() == "c"


def test_a_key_added_while_it_is_processed_is_returned_again() -> None:
    queue = work_queue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert queue.get() == "b"
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")
    queue.add("c")
    assert queue.get() == "c"


def test_a_delayed_key_is_returned_once_when_due() -> None:
    queue = work_queue()
    began = time.monotonic()
    for _ in range(3):
        queue.add_after("a", 0.05)
    queue.add_after("b", 1000)
    assert queue.get() == "a"
    assert time.monotonic() - began >= 0.05
    queue.add("b")
    queue.add_after("b", 1000)
    assert queue.get() == "b"


def test_the_delay_of_a_key_in_process_begins_when_it_is_done() -> None:
    queue = work_queue()
    queue.add("a")
    assert queue.get() == "a"
    for after in (1000, 0.05, 1000):
        queue.add_after("a", after)
    ended = time.monotonic()
    queue.done("a")
    queue.add_after("b", 0.01)
    assert [queue.get(), queue.get()] == ["b", "a"]
    assert time.monotonic() - ended >= 0.05


def test_an_add_without_delay_wins_over_a_delayed_add() -> None:
    queue = work_queue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add_after("a", 1000)
    queue.add("a")
    queue.done("a")
    assert queue.get() == "a"


def test_a_backoff_does_not_delay_a_key_that_is_due_sooner() -> None:
    queue = work_queue(retry_seconds=1000)
    queue.add("a")
    assert queue.get() == "a"
    queue.add_after("a", 0.01)
    fail(queue, "a")
    assert queue.get() == "a"


def test_a_failed_key_is_retried_and_its_failures_are_counted() -> None:
    queue = work_queue()
    queue.add("a")
    for failures in range(3):
        assert queue.num_requeues("a") == failures
        assert queue.get() == "a"
        fail(queue, "a")
    assert queue.get() == "a"
    queue.forget("a")
    queue.done("a")
    assert queue.num_requeues("a") == 0


def test_an_add_ends_the_backoff_of_a_failed_key() -> None:
    queue = work_queue(retry_seconds=1000)
    queue.add("a")
    assert queue.get() == "a"
    fail(queue, "a")
    queue.add("b")
    assert queue.get() == "b"
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    fail(queue, "a")
    assert queue.get() == "a"


def test_a_delayed_retry_is_no_failure() -> None:
    queue = work_queue()
    queue.add("a")
    for _ in range(3):
        assert queue.get() == "a"
        put_off(queue, "a", 0.0)
    assert queue.num_requeues("a") == 0
    assert queue.get() == "a"


def test_an_add_ends_the_delay_of_a_retry() -> None:
    queue = work_queue()
    queue.add("a")
    assert queue.get() == "a"
    put_off(queue, "a", 1000)
    queue.add("b")
    assert queue.get() == "b"
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    put_off(queue, "a", 1000)
    assert queue.get() == "a"


def test_forget_resets_the_failures_of_a_queued_key() -> None:
    queue = work_queue()
    queue.add_rate_limited("a")
    queue.forget("a")
    assert queue.num_requeues("a") == 0
    assert queue.get() == "a"


def test_a_delayed_key_does_not_block_others() -> None:
    queue = work_queue()
    queue.add_after("later", 0.01)
    queue.add("at once")
    assert queue.get() == "at once"
    assert queue.get() == "later"


def test_a_delayed_key_that_is_added_is_returned_once() -> None:
    queue = work_queue()
    queue.add_after("a", 1000)
    queue.add("a")
    queue.add_after("a", 1000)
    assert queue.get() == "a"
    queue.done("a")
    queue.add("b")
    assert queue.get() == "b"


def test_a_longer_delay_does_not_replace_a_shorter_one() -> None:
    queue = work_queue()
    queue.add_after("a", 0.01)
    queue.add_after("a", 1000)
    assert queue.get() == "a"


def test_a_failure_outside_the_workers_is_retried() -> None:
    queue = work_queue()
    queue.add_rate_limited("a")
    assert queue.num_requeues("a") == 1
    assert queue.get() == "a"


def test_failed_keys_occupy_slow_workers_only() -> None:
    queue = work_queue(slow_workers=1)
    for key in ("slow-1", "slow-2"):
        queue.add_rate_limited(key)
    assert queue.get() == "slow-1"
    queue.add("quick")
    assert queue.get() == "quick"
    queue.done("slow-1")
    assert queue.get() == "slow-2"


def test_add_wakes_a_waiting_worker() -> None:
    queue = work_queue()
    taken: list[str | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.get()))
    worker.start()
    queue.add("a")
    worker.join(10)
    assert taken == ["a"]


@pytest.mark.parametrize("delays", [(0.05, 0.1), (0.1, 0.05), (0.1, 0.1)])
def test_delayed_keys_wake_waiting_workers(delays: tuple[float, float]) -> None:
    queue, taken = work_queue(), SimpleQueue[str | None]()
    workers = [threading.Thread(target=lambda: taken.put(queue.get())) for _ in range(2)]
    for worker in workers:
        worker.start()
    wait_until(lambda: len(queue._changed._waiters) == 2)  # type: ignore[attr-defined]  # of the interpreter
    for key, seconds in zip("ab", delays, strict=True):
        queue.add_after(key, seconds)
    assert {taken.get(timeout=10), taken.get(timeout=10)} == {"a", "b"}


def test_a_key_that_is_due_later_than_another_wakes_no_worker() -> None:
    queue = work_queue()
    queue.add_after("first", 1000)
    worker = threading.Thread(target=queue.get)
    worker.start()
    wait_until(lambda: len(queue._changed._waiters) == 1)  # type: ignore[attr-defined]  # of the interpreter
    with queue._changed:
        queue._add_locked("later", 1001)
        assert len(queue._changed._waiters) == 1  # type: ignore[attr-defined]
        queue._add_locked("sooner", 999)
        assert not queue._changed._waiters  # type: ignore[attr-defined]
    queue.shut_down()
    worker.join(10)


def test_shut_down_ends_all_workers() -> None:
    queue = work_queue()
    workers = [threading.Thread(target=queue.get) for _ in range(3)]
    for worker in workers:
        worker.start()
    queue.shut_down()
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
    queue.add("a")
    assert queue.get() is None
