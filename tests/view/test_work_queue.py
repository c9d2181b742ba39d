"""Marks become looks: none is lost, none doubled, and what hangs leaves room for the rest."""

import threading
import time

from shim.view.work_queue import WorkQueue


def dirty(*, slow_workers: int = 1, retry_seconds: float = 0.0) -> WorkQueue:
    return WorkQueue(slow_workers=slow_workers, retry_seconds=retry_seconds)


def test_marks_of_one_key_become_one_look() -> None:
    queue = dirty()
    for key in ("a", "b", "a", "a"):
        queue.mark(key)
    assert [queue.wait_next(), queue.wait_next()] == ["a", "b"]
    queue.done("a")
    queue.mark("c")
    assert queue.wait_next() == "c"


def test_mark_during_a_look_asks_for_another_after_it() -> None:
    queue = dirty()
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.mark("a")
    queue.mark("a")
    queue.mark("b")
    assert queue.wait_next() == "b"
    queue.done("a")
    assert queue.wait_next() == "a"
    queue.done("a")
    queue.mark("c")
    assert queue.wait_next() == "c"


def test_a_mark_for_soon_waits_for_the_others() -> None:
    queue = dirty()
    began = time.monotonic()
    for _ in range(3):
        queue.mark("a", after=0.05)
    queue.mark("b", after=1000)
    assert queue.wait_next() == "a"
    assert time.monotonic() - began >= 0.05
    queue.mark("b")
    queue.mark("b", after=1000)
    assert queue.wait_next() == "b"


def test_a_mark_for_soon_during_a_look_asks_for_another_so_long_after_it() -> None:
    queue = dirty()
    queue.mark("a")
    assert queue.wait_next() == "a"
    for after in (1000, 0.05, 1000):
        queue.mark("a", after=after)
    ended = time.monotonic()
    queue.done("a")
    queue.mark("b", after=0.01)
    assert [queue.wait_next(), queue.wait_next()] == ["b", "a"]
    assert time.monotonic() - ended >= 0.05


def test_a_mark_for_now_during_a_look_waits_for_no_other() -> None:
    queue = dirty()
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.mark("a", after=1000)
    queue.mark("a")
    queue.done("a")
    assert queue.wait_next() == "a"


def test_a_mark_for_soon_during_a_look_that_fails_is_no_later_than_asked_for() -> None:
    queue = dirty(retry_seconds=1000)
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.mark("a", after=0.01)
    queue.failed("a")
    assert queue.wait_next() == "a"


def test_failure_is_tried_again_and_counted() -> None:
    queue = dirty()
    queue.mark("a")
    for failures in range(3):
        assert queue.failures("a") == failures
        assert queue.wait_next() == "a"
        queue.failed("a")
    assert queue.wait_next() == "a"
    queue.done("a")
    assert queue.failures("a") == 0


def test_failure_waits_its_time_but_not_for_a_mark() -> None:
    queue = dirty(retry_seconds=1000)
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.failed("a")
    queue.mark("b")
    assert queue.wait_next() == "b"
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.mark("a")
    queue.failed("a")
    assert queue.wait_next() == "a"


def test_what_is_put_off_is_tried_again_and_not_counted() -> None:
    queue = dirty()
    queue.mark("a")
    for _ in range(3):
        assert queue.wait_next() == "a"
        queue.put_off("a")
    assert queue.failures("a") == 0
    assert queue.wait_next() == "a"


def test_what_is_put_off_waits_its_time_but_not_for_a_mark() -> None:
    queue = dirty(retry_seconds=1000)
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.put_off("a")
    queue.mark("b")
    assert queue.wait_next() == "b"
    queue.mark("a")
    assert queue.wait_next() == "a"
    queue.mark("a")
    queue.put_off("a")
    assert queue.wait_next() == "a"


def test_what_has_been_looked_at_elsewhere_has_not_failed_before() -> None:
    queue = dirty()
    queue.mark_failed("a")
    queue.forgive("a")
    assert queue.failures("a") == 0
    assert queue.wait_next() == "a"


def test_what_is_marked_for_later_lets_the_others_pass() -> None:
    queue = dirty()
    queue.mark("later", after=0.01)
    queue.mark("at once")
    assert queue.wait_next() == "at once"
    assert queue.wait_next() == "later"


def test_what_is_marked_for_later_is_given_once_when_it_is_marked_for_now() -> None:
    queue = dirty()
    queue.mark("a", after=1000)
    queue.mark("a")
    queue.mark("a", after=1000)
    assert queue.wait_next() == "a"
    queue.done("a")
    queue.mark("b")
    assert queue.wait_next() == "b"


def test_a_later_mark_puts_nothing_off() -> None:
    queue = dirty()
    queue.mark("a", after=0.01)
    queue.mark("a", after=1000)
    assert queue.wait_next() == "a"


def test_failure_elsewhere_is_tried_again() -> None:
    queue = dirty()
    queue.mark_failed("a")
    assert queue.failures("a") == 1
    assert queue.wait_next() == "a"


def test_failed_keys_leave_workers_to_the_others() -> None:
    queue = dirty(slow_workers=1)
    for key in ("slow-1", "slow-2"):
        queue.mark_failed(key)
    assert queue.wait_next() == "slow-1"
    queue.mark("quick")
    assert queue.wait_next() == "quick"
    queue.done("slow-1")
    assert queue.wait_next() == "slow-2"


def test_waiting_worker_is_woken() -> None:
    queue = dirty()
    taken: list[str | None] = []
    worker = threading.Thread(target=lambda: taken.append(queue.wait_next()))
    worker.start()
    queue.mark("a")
    worker.join(10)
    assert taken == ["a"]


def test_close_ends_all_workers() -> None:
    queue = dirty()
    workers = [threading.Thread(target=queue.wait_next) for _ in range(3)]
    for worker in workers:
        worker.start()
    queue.close()
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
    queue.mark("a")
    assert queue.wait_next() is None
