"""Work goes on without those who left, and is done once for all who ask meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.base.background import Background
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded, NotFound, ResourceExhausted
from tests.threads import no_thread_for
from tests.waits import SECONDS, wait_until


class Work:
    """Work that waits until it may go on."""

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


def test_callers_that_come_during_a_run_share_it_and_its_thread() -> None:
    work = Work()
    background = Background(work, name="shared-run")
    runs = [background.begin() for _ in range(5)]
    assert work.started.wait(SECONDS)
    assert threads_named("shared-run") == 1
    assert all(run is runs[0] for run in runs)
    work.go_on.set()
    wait_until(lambda: runs[0].ended)
    assert runs[0].outcome() == 1
    assert background.join(what="the work") == 2  # what has ended is not remembered


def test_callers_who_leave_start_no_more_threads_and_the_run_goes_on() -> None:
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
    wait_until(lambda: background._run is None)
    assert work.runs == 1


def test_one_who_leaves_is_woken() -> None:
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


def test_a_failure_goes_to_all_and_the_next_run_begins_again() -> None:
    outcomes = iter([NotFound("no such thing"), None])

    def fail_once() -> str:
        if (error := next(outcomes)) is not None:
            raise error
        return "done"

    background = Background(fail_once, name="run")
    with pytest.raises(NotFound):
        background.join(what="the work")
    assert background.join(what="the work") == "done"


def test_the_work_has_no_deadline_of_its_callers() -> None:
    background = Background(lambda: deadline.current().remaining(), name="run")
    with deadline.bound(SECONDS):
        assert background.join(what="the work") is None


def test_without_a_thread_it_is_an_error_and_later_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    background = Background(lambda: "done", name="no-thread")
    with monkeypatch.context() as patch:
        no_thread_for("no-thread", patch)
        with pytest.raises(ResourceExhausted, match="no-thread: no thread can be started"):
            background.join(what="the work")
    assert background.join(what="the work") == "done"
