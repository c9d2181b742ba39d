"""Callers share one run of the work, and each can leave by itself."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.base.single_flight import SingleFlight
from shim.domain.errors import Cancelled, DeadlineExceeded, NotFound, ResourceExhausted

SECONDS = 10.0


class Work:
    """Work that blocks until it is released or its scope is cancelled."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.ended = threading.Event()
        self.cancelled = False

    def __call__(self) -> str:
        self.runs += 1
        scope = deadline.current()
        self.started.set()
        with scope.on_cancel(self.go_on.set):
            assert self.go_on.wait(SECONDS)
        self.cancelled = scope.cancelled
        self.ended.set()
        scope.check("work")
        return "done"


class Caller(Scope):
    """The scope of a caller, which signals when the caller has begun to wait."""

    __slots__ = ("waits",)

    def __init__(self, *, seconds: float | None = 10 * SECONDS) -> None:
        super().__init__(seconds=seconds)
        self.waits = threading.Event()

    @contextmanager
    def on_cancel(self, wake: Callable[[], None]) -> Iterator[None]:
        self.waits.set()
        with super().on_cancel(wake):
            yield


class Crowd:
    """Callers of a SingleFlight, each in a separate thread and scope."""

    def __init__(self, single_flight: SingleFlight[str]) -> None:
        self._single_flight = single_flight
        self._pool = ThreadPoolExecutor(8)

    def submit(self, work: Callable[[], str], *, key: object = "k", caller: Scope | None = None) -> "Future[str]":
        """Start a caller."""
        scope = caller or Caller()

        def call() -> str:
            with deadline.entered(scope):
                return self._single_flight.do(key, work, what="the work")

        return self._pool.submit(call)

    def join(self, work: Callable[[], str], *, key: object = "k", caller: Caller | None = None) -> "Future[str]":
        """Start a caller, and return when it waits."""
        caller = caller or Caller()
        future = self.submit(work, key=key, caller=caller)
        assert caller.waits.wait(SECONDS)
        return future


@pytest.fixture
def single_flight() -> SingleFlight[str]:
    return SingleFlight()


@pytest.fixture
def crowd(single_flight: SingleFlight[str]) -> Crowd:
    return Crowd(single_flight)


def test_all_callers_get_the_result_of_one_run(crowd: Crowd) -> None:
    work = Work()
    callers = [crowd.join(work) for _ in range(3)]
    work.go_on.set()
    assert [caller.result(SECONDS) for caller in callers] == ["done"] * 3
    assert work.runs == 1


def test_calls_of_different_keys_run_independently(crowd: Crowd) -> None:
    first, second = Work(), Work()
    callers = [crowd.join(first, key=("a", None)), crowd.join(second, key=("a", "secret"))]
    assert first.started.wait(SECONDS)
    assert second.started.wait(SECONDS)
    first.go_on.set()
    second.go_on.set()
    assert [caller.result(SECONDS) for caller in callers] == ["done"] * 2


def test_a_call_after_a_completed_call_runs_again(single_flight: SingleFlight[str]) -> None:
    runs = iter(["first", "second"])
    assert single_flight.do("k", lambda: next(runs), what="w") == "first"
    assert single_flight.do("k", lambda: next(runs), what="w") == "second"


def test_all_callers_get_the_failure(crowd: Crowd) -> None:
    go_on = threading.Event()

    def fail() -> str:
        assert go_on.wait(SECONDS)
        raise NotFound("no such thing")

    callers = [crowd.join(fail) for _ in range(2)]
    go_on.set()
    for caller in callers:
        with pytest.raises(NotFound, match="no such thing"):
            caller.result(SECONDS)


def test_a_cancelled_caller_ends_only_its_own_wait(crowd: Crowd) -> None:
    work, leaving = Work(), Caller()
    first = crowd.join(work, caller=leaving)
    assert work.started.wait(SECONDS)
    second = crowd.join(work)
    leaving.cancel()
    with pytest.raises(Cancelled, match="the work"):
        first.result(SECONDS)
    work.go_on.set()
    assert second.result(SECONDS) == "done"
    assert not work.cancelled


def test_a_caller_without_a_deadline_runs_the_work_in_its_own_thread(single_flight: SingleFlight[int]) -> None:
    assert single_flight.do("k", threading.get_ident, what="w") == threading.get_ident()
    with deadline.bound(SECONDS):
        assert single_flight.do("k", threading.get_ident, what="w") != threading.get_ident()


def test_the_work_continues_for_others_after_the_client_of_its_thread_left(crowd: Crowd) -> None:
    work, leaving = Work(), Caller(seconds=None)
    first = crowd.join(work, caller=leaving)
    assert work.started.wait(SECONDS)
    second = crowd.join(work)
    leaving.cancel()
    work.go_on.set()
    assert second.result(SECONDS) == "done"
    with pytest.raises(Cancelled, match="the work"):
        first.result(SECONDS)
    assert work.runs == 1
    assert not work.cancelled


def test_a_caller_that_leaves_before_the_work_begins_cancels_it(single_flight: SingleFlight[str]) -> None:
    work, gone = Work(), Scope()
    gone.cancel()
    with deadline.entered(gone), pytest.raises(Cancelled, match="the work"):
        single_flight.do("k", work, what="the work")
    assert work.cancelled


@pytest.mark.parametrize("seconds", [None, 10 * SECONDS])
def test_the_last_caller_to_leave_cancels_the_work(crowd: Crowd, seconds: float | None) -> None:
    work, leaving = Work(), [Caller(seconds=seconds), Caller(seconds=seconds)]
    callers = [crowd.join(work, caller=caller) for caller in leaving]
    for scope in leaving:
        scope.cancel()
    for caller in callers:
        with pytest.raises(Cancelled):
            caller.result(SECONDS)
    assert work.ended.wait(SECONDS)
    assert work.cancelled


def test_a_caller_leaves_at_its_deadline(single_flight: SingleFlight[str]) -> None:
    work = Work()
    with deadline.entered(Scope(seconds=0.01)), pytest.raises(DeadlineExceeded, match="the work"):
        single_flight.do("k", work, what="the work")
    assert work.ended.wait(SECONDS)
    assert work.cancelled


def test_a_caller_after_a_cancelled_run_starts_a_new_run(crowd: Crowd) -> None:
    stuck, fresh, leaving = threading.Event(), Work(), Caller()

    def deaf() -> str:
        assert stuck.wait(SECONDS)
        return "too late"

    first = crowd.join(deaf, caller=leaving)
    leaving.cancel()
    with pytest.raises(Cancelled):
        first.result(SECONDS)
    second = crowd.join(fresh)
    fresh.go_on.set()
    assert second.result(SECONDS) == "done"
    stuck.set()


def test_the_work_does_not_run_under_the_deadline_of_its_callers(single_flight: SingleFlight[str]) -> None:
    with deadline.entered(Scope(seconds=SECONDS)):
        assert single_flight.do("k", lambda: str(deadline.current().remaining()), what="w") == "None"


def test_an_unexpected_error_without_a_waiting_caller_is_logged(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    reported, said = threading.Event(), []

    def hook(args: threading.ExceptHookArgs) -> None:
        said.append(args.exc_value)
        reported.set()

    monkeypatch.setattr(threading, "excepthook", hook)
    go_on, leaving = threading.Event(), Caller()

    def broken() -> str:
        assert go_on.wait(SECONDS)
        raise ZeroDivisionError("a bug")

    caller = crowd.join(broken, caller=leaving)
    leaving.cancel()
    with pytest.raises(Cancelled):
        caller.result(SECONDS)
    go_on.set()
    assert reported.wait(SECONDS)
    assert isinstance(said[0], ZeroDivisionError)


class Shortage:
    """A shortage of threads: starting a thread for the work waits for `go_on`, then fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.asked = threading.Event()
        self.go_on = threading.Event()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        real = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if thread.name != "single-flight":
                return real(thread)
            self.asked.set()
            assert self.go_on.wait(SECONDS)
            raise RuntimeError("can't start new thread")

        with self._patch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            yield


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


def test_a_call_fails_if_no_thread_can_be_started(single_flight: SingleFlight[str], shortage: Shortage) -> None:
    shortage.go_on.set()
    with deadline.bound(SECONDS):
        with shortage(), pytest.raises(ResourceExhausted, match="no thread can be started"):
            single_flight.do("k", lambda: "done", what="the work")
        assert single_flight.do("k", lambda: "done", what="the work") == "done"


def test_all_callers_get_the_error_if_no_thread_can_be_started(crowd: Crowd, shortage: Shortage) -> None:
    with shortage():
        first = crowd.submit(lambda: "done")
        assert shortage.asked.wait(SECONDS)
        second = crowd.join(lambda: "done")
        shortage.go_on.set()
        for caller in (first, second):
            with pytest.raises(ResourceExhausted, match="no thread can be started"):
                caller.result(SECONDS)
    assert crowd.join(lambda: "done").result(SECONDS) == "done"
