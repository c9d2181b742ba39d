"""Whether the node view may answer: only while it is fed, and never half rebuilt."""

import threading
import time

from shim.base import deadline
from shim.domain.errors import Unavailable

NOT_BUILT = "the view of docker's containers has not been built yet"
CONNECT_SECONDS = 2.0
"""How long questions wait after the start of the server for Docker to be reached at all. A Docker that works is reached
within milliseconds; one that hangs would hold up the start of the server, which asks what pods there are."""


class Availability:
    """Fed, being rebuilt, or cut off from Docker. Guarded by the condition of its owner, which must be held."""

    def __init__(
        self,
        changed: threading.Condition,
        *,
        patience: float,
        initially: str = NOT_BUILT,
        refusal: type[Unavailable] = Unavailable,
    ) -> None:
        """`patience` is how many seconds a question waits for a rebuild that is under way.

        `initially` is the reason before the first rebuild; `refusal` is raised where a question cannot be answered.
        """
        self._changed = changed
        self._patience = patience
        self._refusal = refusal
        self._rebuilding = True
        self._outage: str | None = initially
        self._out_since = time.monotonic()
        self._connect_until = time.monotonic() + CONNECT_SECONDS
        self._epoch = 0
        self.completed = 0
        """How many rebuilds have been completed."""

    @property
    def outage(self) -> str | None:
        """Why no question is answered now; None while they are."""
        return self._outage

    @property
    def outage_seconds(self) -> float:
        """How long questions have been refused; 0 while they are answered."""
        return 0.0 if self._outage is None else time.monotonic() - self._out_since

    def begin_rebuild(self) -> int:
        """Say that Docker answers again; gives what `complete` must present."""
        self._epoch += 1
        self._rebuilding = True
        self._changed.notify_all()
        return self._epoch

    def stale(self, epoch: int) -> bool:
        """Whether Docker was lost again since the rebuild of this epoch began."""
        return epoch != self._epoch

    def complete(self, epoch: int) -> bool:
        """Let questions be answered, unless Docker was lost again since that rebuild began."""
        if self.stale(epoch):
            return False
        self._rebuilding = False
        self._outage = None
        self.completed += 1
        self._changed.notify_all()
        return True

    def lose(self, reason: str) -> None:
        """Answer no question until the next rebuild is complete."""
        self._epoch += 1
        self._rebuilding = False
        if self._outage is None:
            self._out_since = time.monotonic()
        self._outage = reason
        self._changed.notify_all()

    def wait_available(self, *, patience: float | None = None) -> None:
        """Return when questions may be answered. Unavailable at once while Docker is out of reach.

        `patience` is how many seconds to wait for a rebuild at most, None for as long as was said at the beginning.
        """
        if self._outage is None:
            return
        scope = deadline.current()
        patience = self._patience if patience is None else min(patience, self._patience)
        end = time.monotonic() + patience
        with scope.on_cancel(self._wake):
            while self._outage is not None:
                # No rebuild has been begun before the first connection, which Docker owes us sooner.
                left = (end if self._epoch else min(end, self._connect_until)) - time.monotonic()
                if not self._rebuilding or left <= 0:
                    raise self._refusal(self._outage)
                scope.check(f"wait for docker ({self._outage})")
                self._changed.wait(scope.remaining(left))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
