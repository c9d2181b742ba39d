"""Deadline and cancellation of the current work.

An RPC opens a `Scope`; the code it calls asks `current()` how long it may wait, and is woken when the client
disconnects. The scope is a context variable, so no function needs a parameter for it; `shim.base.gather` copies it into
the threads it starts.
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
"""Seconds, eleven days. A longer timeout counts as no timeout: it would overflow the limits of sockets and poll(2)."""


class Scope:
    """The deadline and the cancellation of one piece of work. Thread-safe."""

    __slots__ = ("_cancelled", "_expires", "_lock", "_tickets", "_wakers")

    def __init__(self, *, seconds: float | None = None) -> None:
        self.restart(seconds)
        self._cancelled = False
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._wakers: dict[int, Callable[[], None]] = {}

    def restart(self, seconds: float | None) -> None:
        """Set the deadline to `seconds` from now, or remove it for None: for long work that must make progress.

        A wait that has begun uses its earlier deadline until that has passed. So only the waiting thread itself can
        shorten the deadline.
        """
        self._expires = None if seconds is None or seconds > LONGEST else time.monotonic() + seconds

    def expiry(self) -> float | None:
        """Return the deadline by the monotonic clock; None for no deadline. A waiter asks again at that time."""
        return self._expires

    @property
    def cancelled(self) -> bool:
        """Return whether the client has disconnected or cancelled."""
        return self._cancelled

    @property
    def expired(self) -> bool:
        """Return whether the deadline has passed."""
        expiry = self.expiry()
        return expiry is not None and time.monotonic() >= expiry

    def remaining(self, limit: float | None = None) -> float | None:
        """Return the seconds left until the deadline, from 0 to `limit`; None if there is neither."""
        expiry = self.expiry()
        left = None if expiry is None else max(0.0, expiry - time.monotonic())
        if left is None or limit is None:
            return limit if left is None else left
        return min(left, limit)

    def check(self, what: str) -> None:
        """Raise Cancelled or DeadlineExceeded, which name `what`, if the scope has ended."""
        if self._cancelled:
            raise Cancelled(f"{what}: the client cancelled the request")
        if self.expired:
            raise DeadlineExceeded(f"{what}: the deadline of the request has passed")

    def cancel(self) -> None:
        """Cancel the work and call all registered wake-up functions. Idempotent."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled = True
            wakers = list(self._wakers.values())
        # The ExitStack calls all functions even if one of them raises.
        with ExitStack() as stack:
            for wake in wakers:
                stack.callback(wake)

    @contextmanager
    def on_cancel(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` once if the work is cancelled inside the block. `wake` must be short; any thread may call it."""
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
    """The time when any of several pieces of work last made progress. Thread-safe."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0
        """By the monotonic clock."""

    def note(self) -> None:
        """Record progress now."""
        self.at = time.monotonic()


_current: ContextVar[Scope] = ContextVar("scope", default=Scope())  # noqa: B039 - the unbounded scope never changes


def current() -> Scope:
    """Return the scope of the current work; a scope without a deadline if none was opened."""
    return _current.get()


def wait_for(condition: threading.Condition, predicate: Callable[[], T], *, what: str, limit: float | None = None) -> T:
    """Wait until `predicate`, called with the condition's lock held, returns a true value; return that value.

    After `limit` seconds return its last value, which is false. Raise Cancelled or DeadlineExceeded, which name `what`,
    when the current scope ends. The caller may hold the lock if it is reentrant, the default of `threading.Condition`.
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
    """Make `scope` the current scope inside the block."""
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


@contextmanager
def bound(seconds: float) -> Iterator[Scope]:
    """Run the block with a deadline of at most `seconds`; a cancellation of the outer scope still reaches it."""
    outer = current()
    inner = Scope(seconds=outer.remaining(seconds))
    with outer.on_cancel(inner.cancel), entered(inner):
        yield inner


@contextmanager
def shielded(seconds: float) -> Iterator[Scope]:
    """Run clean-up in a new scope of `seconds`, whatever the deadline or cancellation of the outer scope."""
    with entered(Scope(seconds=seconds)) as scope:
        yield scope
