"""Single flight: work that several callers want at the same time is done once for all of them."""

import contextvars
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from shim.base import deadline
from shim.base.deadline import Scope
from shim.base.thread_pool import CachedThreadPool
from shim.domain.errors import ShimError

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """At most one call under way for each key; results are not remembered. Thread-safe.

    Strategy: the first caller does the work in its own thread if it has no deadline, since to hand the work to another
    thread, and to be woken at the end, takes 0.2 ms. If its client leaves while others wait, that thread finishes the
    work for them. A first caller with a deadline must be able to return when that has passed, so a pool thread does
    the work.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[Hashable, _Call[T]] = {}
        self._pool = CachedThreadPool("single-flight")

    def do(self, key: Hashable, work: Callable[[], T], *, what: str) -> T:
        """Return the result of `work`, or raise its failure; shared with the call under way for an equal `key`.

        The wait ends with the current scope: Cancelled or DeadlineExceeded, which name `what`. The work itself runs in
        a scope of its own, without a deadline, which is cancelled when the last caller has left. The key may hold
        secrets: it is never shown.
        """
        call, is_first = self._enter(key, work)
        if is_first and deadline.current().remaining() is None:
            return self._run_here(key, call, what)
        try:
            if is_first:
                self._run_in_pool(key, call)
            deadline.wait_for(self._changed, lambda: call.done, what=what)
            return call.result()
        finally:
            self._leave(key, call)

    def row(self) -> dict[str, object]:
        """Return how many calls are under way and how many callers they have, for people; the keys may be secret."""
        with self._changed:
            return {"calls": len(self._calls), "callers": sum(call.callers for call in self._calls.values())}

    def _enter(self, key: Hashable, work: Callable[[], T]) -> "tuple[_Call[T], bool]":
        """Count one more caller. Return the call, and whether it is new, so that this caller has to run it."""
        with self._changed:
            call = self._calls.get(key)
            is_first = call is None
            if call is None:
                call = self._calls[key] = _Call(work)
            call.callers += 1
            return call, is_first

    def _run_here(self, key: Hashable, call: "_Call[T]", what: str) -> T:
        """Do the work in this thread; a caller whose client leaves before the end is no longer counted."""
        scope = deadline.current()
        with scope.on_cancel(partial(self._leave, key, call)):
            self._run(key, call)
        scope.check(what)
        return call.result()

    def _run_in_pool(self, key: Hashable, call: "_Call[T]") -> None:
        """Have another thread do the work. If none can be started, the call fails for all its callers."""
        try:
            self._pool.run(partial(contextvars.copy_context().run, self._run, key, call))
        except BaseException as failure:  # noqa: BLE001 - raised again in every caller
            call.fail(failure)
            self._finish(key, call)

    def _run(self, key: Hashable, call: "_Call[T]") -> None:
        call.run()
        abandoned = not self._finish(key, call)
        if abandoned and call.is_fault:
            call.result()  # no caller is left to raise it: as an unhandled exception of the thread it reaches the log

    def _finish(self, key: Hashable, call: "_Call[T]") -> int:
        """Wake the callers that wait; return how many there are."""
        with self._changed:
            call.done = True
            self._forget(key, call)
            self._changed.notify_all()
            return call.callers

    def _leave(self, key: Hashable, call: "_Call[T]") -> None:
        with self._changed:
            call.callers -= 1
            if call.callers or call.done:
                return
            # The work is about to be cancelled, so the next caller has to start a new call.
            self._forget(key, call)
        call.scope.cancel()

    def _forget(self, key: Hashable, call: "_Call[T]") -> None:
        if self._calls.get(key) is call:
            del self._calls[key]


class _Call(Generic[T]):
    """One piece of work and the number of its callers; guarded by the lock of its SingleFlight."""

    __slots__ = ("_failure", "_result", "_work", "callers", "done", "scope")

    def __init__(self, work: Callable[[], T]) -> None:
        self.scope = Scope()
        self.callers = 0
        self.done = False
        self._work = work
        self._result: list[T] = []
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            with deadline.entered(self.scope):
                self._result.append(self._work())
        except BaseException as failure:  # noqa: BLE001 - raised again in every caller
            self.fail(failure)

    def fail(self, failure: BaseException) -> None:
        self._failure = failure

    @property
    def is_fault(self) -> bool:
        return self._failure is not None and not isinstance(self._failure, ShimError)

    def result(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._result[0]
