"""Work whose callers may leave before its end, and that goes on without them."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from shim.base import deadline
from shim.base.thread_pool import CachedThreadPool
from shim.domain.errors import ResourceExhausted

T = TypeVar("T")


class Background(Generic[T]):
    """At most one run of the work at a time, in a thread of its own, shared by all callers until it ends. Thread-safe.

    Unlike with `shim.base.single_flight.SingleFlight`, nothing ends a run but the work itself, which has to
    bound itself. So no number of callers starts more than one thread, and work that takes longer than each of them
    waits is still done.
    """

    def __init__(self, work: Callable[[], T], *, name: str) -> None:
        """Take the work; `name` is that of the thread."""
        self._work = work
        self._name = name
        self._changed = threading.Condition()
        self._run: _Run[T] | None = None
        self._pool = CachedThreadPool(name)

    def begin(self) -> "_Run[T]":
        """Start a run unless one is under way. ResourceExhausted where no thread can be started."""
        with self._changed:
            if self._run is None:
                run = _Run(self._work)
                try:
                    self._pool.run(lambda: self._finish(run))
                except RuntimeError as error:
                    raise ResourceExhausted(f"{self._name}: no thread can be started: {error}") from error
                self._run = run
            return self._run

    def join(self, *, what: str) -> T:
        """Return the result of the run that is under way, or of a new one, or raise its failure.

        The wait ends with the current scope: Cancelled or DeadlineExceeded, which name `what`.
        """
        run = self.begin()
        deadline.wait_for(self._changed, lambda: run.ended, what=what)
        return run.outcome()

    def _finish(self, run: "_Run[T]") -> None:
        run.perform()
        with self._changed:
            run.ended = True
            self._run = None
            self._changed.notify_all()


class _Run(Generic[T]):
    """One run of the work."""

    __slots__ = ("_failure", "_result", "_work", "ended")

    def __init__(self, work: Callable[[], T]) -> None:
        self.ended = False
        self._work = work
        self._result: list[T] = []
        self._failure: BaseException | None = None

    def perform(self) -> None:
        try:
            self._result.append(self._work())
        except BaseException as failure:  # noqa: BLE001 - raised again in every caller
            self._failure = failure

    def outcome(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._result[0]
