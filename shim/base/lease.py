"""A lock that one holder cannot keep from the others for ever."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shim.base import deadline
from shim.base.locks import Holder
from shim.domain.errors import Cancelled, DeadlineExceeded, Unavailable

_GOES_ON = (Cancelled, DeadlineExceeded, Unavailable)
"""Errors after which what a holder has begun may go on."""


class Lease:
    """At most one holder at a time, while none takes longer than `seconds`; then the next one goes on beside it.

    For what works better one after the other, but must not wait for one that hangs. Thread-safe.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._holder: Holder | None = None
        self._expires = 0.0
        """By the monotonic clock."""
        self._waiting = 0

    @contextmanager
    def hold(self, *, what: str) -> Iterator[None]:
        """Hold it inside the block. The wait ends with the current scope: Cancelled or DeadlineExceeded, for `what`.

        A block that ends by one of these, or by Unavailable, has it until it expires.
        """
        holder = self._take(what)
        goes_on = False
        try:
            yield
        except _GOES_ON:
            goes_on = True
            raise
        finally:
            if not goes_on:
                self._release(holder)

    def rows(self, name: str) -> list[dict[str, object]]:
        """Return the holder, if there is one, as `KeyedLocks.rows` does."""
        with self._changed:
            holder, expires, waiting = self._holder, self._expires, self._waiting
        if holder is None or time.monotonic() >= expires:
            return []
        return [holder.row(name, waiting=waiting)]

    def _take(self, what: str) -> Holder:
        holder = Holder()
        take = partial(self._try_take, holder)
        with self._changed:
            self._waiting += 1
            try:
                while not deadline.wait_for(self._changed, take, what=what, limit=self._expires - time.monotonic()):
                    pass  # Another one was faster when it expired.
            finally:
                self._waiting -= 1
        return holder

    def _try_take(self, holder: Holder) -> bool:
        now = time.monotonic()
        if self._holder is not None and now < self._expires:
            return False
        self._holder, self._expires = holder, now + self._seconds
        return True

    def _release(self, holder: Holder) -> None:
        with self._changed:
            if self._holder is holder:
                self._holder = None
                self._changed.notify_all()
