"""Whether the node view may answer: only while it is synced, never in the middle of a sync."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from shim.base import deadline
from shim.domain.errors import Unavailable

T = TypeVar("T")

NOT_SYNCED = "the view of docker's containers has not been built yet"
CONNECT_SECONDS = 2.0
"""How long reads wait after the start of the server for Docker to be reached at all. A Docker that works is reached
within milliseconds; one that hangs would delay the start of the server, which reads what pods there are."""


class Availability:
    """Synced, syncing or disconnected. Guarded by the condition of its owner, which must be held."""

    def __init__(
        self,
        changed: threading.Condition,
        *,
        timeout: float,
        initially: str = NOT_SYNCED,
        refusal: type[Unavailable] = Unavailable,
    ) -> None:
        """`timeout` is how many seconds a read waits for a sync in progress.

        `initially` is the reason before the first sync; `refusal` is raised when a read cannot be answered.
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
        """How many syncs have been completed."""

    @property
    def outage(self) -> str | None:
        """Why reads are refused; None while synced."""
        return self._outage

    @property
    def outage_seconds(self) -> float:
        """How long reads have been refused; 0 while synced."""
        return 0.0 if self._outage is None else time.monotonic() - self._out_since

    def begin_sync(self) -> int:
        """Begin a sync, since Docker answers; return its epoch, which `complete_sync` needs."""
        self._epoch += 1
        self._syncing = True
        self._changed.notify_all()
        return self._epoch

    def is_stale(self, epoch: int) -> bool:
        """Whether the connection has been lost since the sync of this epoch began."""
        return epoch != self._epoch

    def complete_sync(self, epoch: int) -> bool:
        """Allow reads, and return True; return False if the connection has been lost since that sync began."""
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
        """Return when reads are allowed; raise Unavailable at once while disconnected.

        `timeout` is how many seconds to wait for a sync at most, None for the timeout of this object.
        """
        if self._outage is None:
            return
        end = time.monotonic() + (self._timeout if timeout is None else min(timeout, self._timeout))
        # Before the first connection no sync has begun; that wait is shorter.
        if self._wait(lambda: self._epoch, until=min(end, self._connect_until)):
            self._wait(lambda: not self._syncing, until=end)
        if self._outage is not None:
            raise self._refusal(self._outage)

    def _wait(self, predicate: Callable[[], T], *, until: float) -> T:
        what = f"wait for docker ({self._outage})"
        return deadline.wait_for(self._changed, predicate, what=what, limit=until - time.monotonic())
