"""Callers share a run, and the run continues after they have left."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.base.single_flight import Background
from shim.domain.errors import Cancelled, DeadlineExceeded, NotFound, ResourceExhausted
from tests.threads import no_thread_for
from tests.waits import SECONDS, wait_until


class Work:
    """Work that blocks until it is released."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> int:
        self.runs += 1
        self.started.set()
        assert self.go_on.wait(SECONDS)
        return self.runs


def threads_named(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


def test_callers_during_a_run_share_the_run_and_its_thread() -> None:
    work = Work()
    background = Background(work, name="shared-run")
    for _ in range(5):
        background.begin()
    assert work.started.wait(SECONDS)
    assert (work.runs, threads_named("shared-run")) == (1, 1)
    with ThreadPoolExecutor() as callers:
        joined = [callers.submit(background.join, what="the work") for _ in range(2)]
        wait_until(lambda: background._flight.row()["callers"] == 7)
        work.go_on.set()
        assert [each.result(SECONDS) for each in joined] == [1, 1]
    assert background.join(what="the work") == 2  # the result is not cached


def test_the_run_goes_on_in_one_thread_after_its_callers_left() -> None:
    work = Work()
    background = Background(work, name="long-run")
    for _ in range(50):
        with deadline.bound(0.002), pytest.raises(DeadlineExceeded, match="the work"):
            background.join(what="the work")
    assert (work.runs, threads_named("long-run")) == (1, 1)
    gone = Scope()
    gone.cancel()
    with deadline.entered(gone), pytest.raises(Cancelled):
        background.join(what="the work")
    work.go_on.set()
    wait_until(lambda: background._flight.row()["calls"] == 0)
    assert work.runs == 1


def test_a_cancelled_caller_is_woken() -> None:
    work, leaving = Work(), Scope()
    background = Background(work, name="run")

    def call() -> None:
        with deadline.entered(leaving):
            background.join(what="the work")

    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(call)
        assert work.started.wait(SECONDS)
        leaving.cancel()
        with pytest.raises(Cancelled, match="the work"):
            caller.result(SECONDS)
        work.go_on.set()


def test_all_callers_get_the_failure_and_the_next_call_runs_again() -> None:
    outcomes = iter([NotFound("no such thing"), None])

    def fail_once() -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "done"

    background = Background(fail_once, name="run")
    with pytest.raises(NotFound):
        background.join(what="the work")
    assert background.join(what="the work") == "done"


def test_the_work_does_not_run_under_the_deadline_of_its_callers() -> None:
    background = Background(lambda: deadline.current().remaining(), name="run")
    with deadline.bound(SECONDS):
        assert background.join(what="the work") is None


def test_no_free_thread_raises_resource_exhausted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    background = Background(lambda: "done", name="no-thread")
    with monkeypatch.context() as patch:
        no_thread_for("no-thread", patch)
        with pytest.raises(ResourceExhausted, match="no-thread: no thread can be started"):
            background.join(what="the work")
    assert background.join(what="the work") == "done"
