"""Decides whether the node view may answer reads: only while it is synced, never during a sync."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from shim.base import deadline
from shim.domain.errors import Unavailable

T = TypeVar("T")

NOT_SYNCED = "the view of Docker's containers has not been built yet"
CONNECT_SECONDS = 2.0
"""How long reads wait for the first connection to Docker after the server starts. A working Docker answers within
milliseconds. A hung Docker would delay the server's start, which reads the pods."""


class Availability:
    """The state of the view: synced, syncing or disconnected. Callers hold the owner's condition."""

    def __init__(
        self,
        changed: threading.Condition,
        *,
        timeout: float,
        initially: str = NOT_SYNCED,
        refusal: type[Unavailable] = Unavailable,
    ) -> None:
        """`timeout` bounds the wait of a read for a sync in progress, in seconds.

        `initially` is the reason before the first sync; reads raise `refusal`.
        """
        self._changed = changed
        self._timeout = timeout
        self._refusal = refusal
        self._syncing = True
        self._outage: str | None = initially
        self._out_since = time.monotonic()
        self._connect_until = time.monotonic() + CONNECT_SECONDS
        self._epoch = 0
        self.syncs = 0
        """Completed syncs."""

    @property
    def outage(self) -> str | None:
        """The reason why reads are refused; None while synced."""
        return self._outage

    @property
    def outage_seconds(self) -> float:
        """How long reads have been refused; 0 while synced."""
        return 0.0 if self._outage is None else time.monotonic() - self._out_since

    def begin_sync(self) -> int:
        """Begin a sync; return its epoch for `complete_sync`."""
        self._epoch += 1
        self._syncing = True
        self._changed.notify_all()
        return self._epoch

    def is_stale(self, epoch: int) -> bool:
        """Return whether the connection was lost after the sync of this epoch began."""
        return epoch != self._epoch

    def complete_sync(self, epoch: int) -> bool:
        """Allow reads and return True; return False if the connection was lost after the sync began."""
        if self.is_stale(epoch):
            return False
        self._syncing = False
        self._outage = None
        self.syncs += 1
        self._changed.notify_all()
        return True

    def disconnect(self, reason: str) -> None:
        """Refuse reads until the next sync is complete."""
        self._epoch += 1
        self._syncing = False
        if self._outage is None:
            self._out_since = time.monotonic()
        self._outage = reason
        self._changed.notify_all()

    def wait_available(self, *, timeout: float | None = None) -> None:
        """Wait for a sync in progress. Raise Unavailable if reads are refused; do not wait while disconnected.

        `timeout` lowers this object's own timeout, in seconds.
        """
        if self._outage is None:
            return
        end = time.monotonic() + (self._timeout if timeout is None else min(timeout, self._timeout))
        # Before the first connection no sync is in progress, and the wait is shorter.
        if self._wait(lambda: self._epoch, until=min(end, self._connect_until)):
            self._wait(lambda: not self._syncing, until=end)
        if self._outage is not None:
            raise self._refusal(self._outage)

    def _wait(self, predicate: Callable[[], T], *, until: float) -> T:
        what = f"wait for Docker ({self._outage})"
        return deadline.wait_for(self._changed, predicate, what=what, limit=until - time.monotonic())
