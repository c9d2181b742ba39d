"""Deadline and cancellation of the current work.

An RPC opens a `Scope`; everything below it asks `current()` how long it may wait and is woken when the client goes
away. The scope travels in a context variable, so that the domain need not hand it through every call;
`shim.base.gather` carries it into the threads it starts.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

from shim.domain.errors import Cancelled, DeadlineExceeded

T = TypeVar("T")

LONGEST = 1e6
"""Seconds, eleven days: a longer wait is as good as none, and overflows what sockets and poll(2) take."""


class Scope:
    """One bound on a piece of work. Thread-safe."""

    __slots__ = ("_cancelled", "_expires", "_lock", "_tickets", "_wakers")

    def __init__(self, *, seconds: float | None = None) -> None:
        self.restart(seconds)
        self._cancelled = False
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._wakers: dict[int, Callable[[], None]] = {}

    def restart(self, seconds: float | None) -> None:
        """Restart the time, without end for None: for work that may take long but must make progress.

        A wait under way keeps the bound it began with until that has passed: who cuts a bound short has to be the
        thread that waits.
        """
        self._expires = None if seconds is None or seconds > LONGEST else time.monotonic() + seconds

    def expiry(self) -> float | None:
        """Return when the time is over, by the monotonic clock; None for never. A waiter asks again at that time."""
        return self._expires

    @property
    def cancelled(self) -> bool:
        """Return whether the client has gone."""
        return self._cancelled

    @property
    def expired(self) -> bool:
        """Return whether the time is over."""
        expiry = self.expiry()
        return expiry is not None and time.monotonic() >= expiry

    def remaining(self, limit: float | None = None) -> float | None:
        """Return the seconds left, at most `limit`; None when neither bounds the wait. Never negative."""
        expiry = self.expiry()
        left = None if expiry is None else max(0.0, expiry - time.monotonic())
        if left is None or limit is None:
            return limit if left is None else left
        return min(left, limit)

    def check(self, what: str) -> None:
        """Raise Cancelled or DeadlineExceeded when `what` must not go on."""
        if self._cancelled:
            raise Cancelled(f"{what}: the client cancelled the request")
        if self.expired:
            raise DeadlineExceeded(f"{what}: the deadline of the request has passed")

    def cancel(self) -> None:
        """Record that the client has gone, and wake every wait that registered. Idempotent."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            wakers = list(self._wakers.values())
        # On a stack, so that one that fails does not keep the others from being called.
        with ExitStack() as stack:
            for wake in wakers:
                stack.callback(wake)

    @contextmanager
    def on_cancel(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` (short, from any thread) once if the client goes away inside the block."""
        with self._lock:
            ticket = next(self._tickets)
            self._wakers[ticket] = wake
            gone = self._cancelled
        try:
            if gone:
                wake()
            yield
        finally:
            with self._lock:
                self._wakers.pop(ticket, None)


class ProgressClock:
    """The time of the last progress of any of several pieces of work. Thread-safe."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0
        """By the monotonic clock."""

    def note(self) -> None:
        """Record progress of one of them now."""
        self.at = time.monotonic()


_current: ContextVar[Scope] = ContextVar("scope", default=Scope())  # noqa: B039 - the unbounded scope never changes


def current() -> Scope:
    """Return the scope of the current work; an unbounded one where none was opened."""
    return _current.get()


def wait_for(condition: threading.Condition, predicate: Callable[[], T], *, what: str, limit: float | None = None) -> T:
    """Wait until `predicate`, called with the condition's lock held, returns something true; return that.

    After `limit` seconds return what it returned last. Raise Cancelled or DeadlineExceeded, which name `what`, when the
    current scope ends. The caller may hold the lock, if it is reentrant, as that of `threading.Condition()` is.
    """
    scope = current()
    end = None if limit is None else time.monotonic() + limit
    with scope.on_cancel(partial(_notify, condition)), condition:
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            scope.check(what)
            condition.wait(scope.remaining(left))
    return result


def _notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()


@contextmanager
def entered(scope: Scope) -> Iterator[Scope]:
    """Make `scope` the current one inside the block."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


@contextmanager
def bound(seconds: float) -> Iterator[Scope]:
    """Narrow the current scope to at most `seconds`; the client's cancellation still reaches the block."""
    outer = current()
    inner = Scope(seconds=outer.remaining(seconds))
    with outer.on_cancel(inner.cancel), entered(inner):
        yield inner


@contextmanager
def shielded(seconds: float) -> Iterator[Scope]:
    """Open a scope of its own: clean-up goes on for `seconds` although the client is gone or its time is over."""
    with entered(Scope(seconds=seconds)) as scope:
        yield scope
