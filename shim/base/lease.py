"""A mutex whose hold expires."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shim.base import deadline
from shim.base.locks import Holder
from shim.domain.errors import Cancelled, DeadlineExceeded, Unavailable

_GOES_ON = (Cancelled, DeadlineExceeded, Unavailable)
"""Errors after which Docker may still be working on the request of the holder."""


class Lease:
    """A mutex whose hold expires: after `seconds` the next waiter enters even if the holder has not left. Thread-safe.

    It serialises requests that Docker handles better one after another, but must not wait for a request that hangs.
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
        """Hold the lease inside the block. Raise Cancelled or DeadlineExceeded, which name `what`, while waiting.

        If the block itself raises one of these errors, or Unavailable, the lease stays held until it expires.
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
        """Return a row for the holder, if there is one, as `KeyedLocks.rows` does."""
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
                    pass  # another waiter was faster when the lease expired
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
