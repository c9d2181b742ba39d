"""A lock that one holder cannot keep from the others for ever."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from shim.base import deadline


class Lease:
    """At most one holder at a time, while none takes longer than `seconds`; then the next one goes on beside it.

    For what works better one after the other, but must not wait for one that hangs. Thread-safe.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._changed = threading.Condition()
        self._holder: object | None = None
        self._expires = 0.0
        """By the monotonic clock."""

    @contextmanager
    def hold(self, *, what: str) -> Iterator[None]:
        """Hold it inside the block. The wait ends with the current scope: Cancelled or DeadlineExceeded, for `what`."""
        holder = object()
        take = partial(self._try_take, holder)
        with self._changed:
            while not deadline.wait_for(self._changed, take, what=what, limit=self._expires - time.monotonic()):
                pass  # Another one was faster when it expired.
        try:
            yield
        finally:
            with self._changed:
                if self._holder is holder:
                    self._holder = None
                    self._changed.notify_all()

    def _try_take(self, holder: object) -> bool:
        now = time.monotonic()
        if self._holder is not None and now < self._expires:
            return False
        self._holder, self._expires = holder, now + self._seconds
        return True
