"""Calls run concurrently under the caller's scope, and `gather` waits for all of them."""

import threading
from collections.abc import Callable

import pytest

from shim.base import deadline
from shim.base.gather import gather
from shim.base.thread_pool import ThreadPool


def test_results_come_in_the_order_of_the_calls() -> None:
    second_done = threading.Event()

    def first() -> int:
        assert second_done.wait(timeout=30)
        return 1

    def second() -> int:
        second_done.set()
        return 2

    assert gather([first, second]) == [1, 2]


@pytest.mark.parametrize("results", [[], [7]], ids=["none", "one"])
def test_no_call_and_a_single_call_return_their_results(results: list[int]) -> None:
    calls: list[Callable[[], int]] = [lambda result=result: result for result in results]  # type: ignore[misc]
    assert gather(calls) == results


def test_width_bounds_the_threads() -> None:
    lock = threading.Lock()
    both = threading.Barrier(2)
    running: list[int] = []
    most: list[int] = []

    def call() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        both.wait(timeout=30)
        with lock:
            running.pop()

    gather([call] * 6, width=2)
    assert max(most) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_every_call_sees_the_scope_of_the_caller(count: int) -> None:
    with deadline.bound(60) as scope:
        assert gather([deadline.current] * count) == [scope] * count


def test_a_failure_waits_for_the_other_calls_and_notes_their_failures() -> None:
    go_on = threading.Event()
    ended: list[str] = []

    def fail(words: str) -> None:
        go_on.set()
        raise ValueError(words)

    def last() -> None:
        assert go_on.wait(timeout=30)
        ended.append("last")

    with pytest.raises(ValueError, match="first") as caught:
        gather([lambda: fail("first"), lambda: fail("second"), last])
    assert ended == ["last"]
    assert caught.value.__notes__ == ["and: second"]


def test_the_failure_of_a_single_call_is_raised_unchanged() -> None:
    error = ValueError("only")

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match="only") as caught:
        gather([fail])
    assert caught.value is error


def test_the_caller_runs_calls_too() -> None:
    meeting = threading.Barrier(3)

    def meet() -> threading.Thread:
        meeting.wait(timeout=30)
        return threading.current_thread()

    assert threading.current_thread() in gather([meet] * 3)


def test_the_caller_runs_all_calls_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("shim.base.gather._POOL", ThreadPool("gather"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert gather([threading.current_thread] * 3) == [threading.current_thread()] * 3
