"""Single flight: concurrent calls with the same key share one run of the work."""

import contextvars
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from shim.base import deadline
from shim.base.deadline import Scope
from shim.base.thread_pool import ThreadPool, run_into
from shim.domain.errors import ResourceExhausted, ShimError

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs at most one call for each key at a time; results are not cached. Thread-safe.

    A first caller without a deadline does the work in its own thread, since a switch to another thread and back takes
    0.2 ms. If its client leaves while others wait, the thread finishes the work for them. A first caller with a
    deadline must be able to return when the deadline passes, so a pool thread does the work.
    """

    def __init__(self, *, name: str = "single-flight") -> None:
        """`name` is the name of the threads."""
        self._name = name
        self._changed = threading.Condition()
        self._calls: dict[Hashable, _Call[T]] = {}
        self._pool = ThreadPool(name)

    def do(self, key: Hashable, work: Callable[[], T], *, what: str) -> T:
        """Return the result of `work`, or raise its error; join a running call with an equal `key`.

        Raise Cancelled or DeadlineExceeded, which name `what`, if the current scope ends first, and ResourceExhausted
        if no thread can be started. The work runs in a new scope without a deadline, which is cancelled when the last
        caller has left. The key may contain secrets and is never shown.
        """
        call, is_first = self._enter(key, work)
        if is_first and deadline.current().remaining() is None:
            return self._run_here(key, call, what)
        try:
            if is_first:
                self._run_in_pool(key, call)
            return self.wait(call, what=what)
        finally:
            self._leave(key, call)

    def begin(self, key: Hashable, work: Callable[[], T]) -> "_Call[T]":
        """Start `work` in a thread, unless a call with an equal `key` is running. The call is never cancelled."""
        call, is_first = self._enter(key, work)
        if is_first:
            self._run_in_pool(key, call)
        return call

    def wait(self, call: "_Call[T]", *, what: str) -> T:
        """Wait for a call, and return its result or raise its error. Raise as `do` does if the scope ends first."""
        deadline.wait_for(self._changed, call.future.done, what=what)
        return call.future.result()

    def row(self) -> dict[str, object]:
        """Return the numbers of calls and of their callers, for the state dump."""
        with self._changed:
            return {"calls": len(self._calls), "callers": sum(call.callers for call in self._calls.values())}

    def _enter(self, key: Hashable, work: Callable[[], T]) -> "tuple[_Call[T], bool]":
        """Add a caller. Return the call, and whether it is new, so that this caller must run it."""
        with self._changed:
            call = self._calls.get(key)
            is_first = call is None
            if call is None:
                call = self._calls[key] = _Call(work)
            call.callers += 1
            return call, is_first

    def _run_here(self, key: Hashable, call: "_Call[T]", what: str) -> T:
        """Do the work in this thread. If this caller's client leaves before the end, the caller no longer counts."""
        scope = deadline.current()
        with scope.on_cancel(partial(self._leave, key, call)):
            self._run(key, call)
        scope.check(what)
        return call.future.result()

    def _run_in_pool(self, key: Hashable, call: "_Call[T]") -> None:
        """Run the call in a pool thread. If no thread can be started, the call fails for all callers."""
        try:
            self._pool.run(partial(contextvars.copy_context().run, self._run, key, call))
        except RuntimeError as error:
            call.future.set_exception(ResourceExhausted(f"{self._name}: no thread can be started: {error}"))
            self._finish(key, call)

    def _run(self, key: Hashable, call: "_Call[T]") -> None:
        with deadline.entered(call.scope):
            run_into(call.future, call.work)
        abandoned = not self._finish(key, call)
        if abandoned and not isinstance(call.future.exception(), ShimError):
            call.future.result()  # no caller is left to report a fault: raise it, as unhandled exceptions are logged

    def _finish(self, key: Hashable, call: "_Call[T]") -> int:
        """Wake the waiting callers; return their number."""
        with self._changed:
            self._forget(key, call)
            self._changed.notify_all()
            return call.callers

    def _leave(self, key: Hashable, call: "_Call[T]") -> None:
        with self._changed:
            call.callers -= 1
            if call.callers or call.future.done():
                return
            # The work is about to be cancelled, so the next caller must start a new call.
            self._forget(key, call)
        call.scope.cancel()

    def _forget(self, key: Hashable, call: "_Call[T]") -> None:
        if self._calls.get(key) is call:
            del self._calls[key]


class _Call(Generic[T]):
    """One run of the work and the number of its callers; guarded by the lock of the SingleFlight."""

    __slots__ = ("callers", "future", "scope", "work")

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.scope = Scope()
        self.callers = 0
        self.future: Future[T] = Future()


class Background(Generic[T]):
    """Runs its work in a thread, at most once at a time; all callers share the current run. Thread-safe.

    The work is never cancelled, so it must bound itself. Work that takes longer than any caller waits still completes,
    and never occupies more than one thread.
    """

    def __init__(self, work: Callable[[], T], *, name: str) -> None:
        """Set the work to run; `name` names its thread."""
        self._work = work
        self._flight: SingleFlight[T] = SingleFlight(name=name)

    def begin(self) -> None:
        """Start a run unless the work is running."""
        self._flight.begin(None, self._work)

    def join(self, *, what: str) -> T:
        """Wait for the current run, or for a new run, and return its result or raise its error.

        Raise Cancelled or DeadlineExceeded, which name `what`, if the current scope ends first, and ResourceExhausted
        if no thread can be started.
        """
        return self._flight.wait(self._flight.begin(None, self._work), what=what)
