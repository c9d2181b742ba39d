"""How long work may take, and whether its client is still there.

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

from shim.domain.errors import Cancelled, DeadlineExceeded

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
        """Let the time begin anew, without end for None: for work that may take long but must move on.

        A wait under way keeps the bound it began with until that has passed: who cuts a bound short has to be the
        thread that waits.
        """
        self._expires = None if seconds is None or seconds > LONGEST else time.monotonic() + seconds

    def expiry(self) -> float | None:
        """When the time is over, by the monotonic clock; None for never. Who waits asks again when it has come."""
        return self._expires

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone."""
        return self._cancelled

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        expiry = self.expiry()
        return expiry is not None and time.monotonic() >= expiry

    def remaining(self, limit: float | None = None) -> float | None:
        """Seconds left, at most `limit`; None when neither bounds the wait. Never negative."""
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
        """Say that the client has gone, and wake every wait that asked for it. Idempotent."""
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
    """When any of several pieces of work has moved on last, for one that has to wait for the others. Thread-safe."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0.0
        """By the monotonic clock."""

    def note(self) -> None:
        """Say that one moves on now."""
        self.at = time.monotonic()


_current: ContextVar[Scope] = ContextVar("scope", default=Scope())  # noqa: B039 - the unbounded scope never changes


def current() -> Scope:
    """Give the scope of the work at hand; unbounded where nobody opened one."""
    return _current.get()


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
