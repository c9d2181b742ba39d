"""The timeout of a pull without progress, and the observer of its progress messages."""

import time

import structlog

from shim.base.deadline import LONGEST, ProgressClock, Scope
from shim.engine.answers import PullProgress
from shim.image.progress import Progress, retry_seconds

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 10.0
"""A pull that takes longer is logged, and logged again at this interval while it makes progress."""
_RETRY_WAIT_SECONDS = 60.0
"""Maximum total of Docker's waits before retries of a layer, without progress in between. By default Docker tries five
times, with waits of 50 seconds in all; a daemon configured for a hundred tries would wait for hours."""
QUEUED_FACTOR_OTHER = 10
"""Factor on the timeout while Docker queues a layer behind other pulls, perhaps a `docker pull` whose progress is not
visible here. A pull that is aborted and repeated goes to the end of the queue, so it gets time for an image of some GiB
(ten minutes by default). Not more, because the layer may have left the queue and be waiting for a registry that does
not answer."""
QUEUED_FACTOR_OWN = 60
"""The same factor while other pulls of this server make progress: an hour by default. Docker's queue is first come,
first served."""


class StallTimeout(Scope):
    """The time limit of a pull without progress; each progress resets it.

    Strategy: no thread watches it. The reader of the messages waits until `expiry`, then evaluates `expiry` again: by
    then other pulls, behind which this pull is queued, may have made progress, which extends it.
    """

    __slots__ = ("_all_pulls", "_has_queue", "_moved", "_seconds", "progress")

    def __init__(self, seconds: float, *, all_pulls: ProgressClock, has_queue: bool) -> None:
        """Start the clock. The pull ends after `seconds` without progress, 0 means never.

        `all_pulls` is the progress clock of this server. `has_queue` is whether Docker queues layers of pulls. The
        containerd store does not: there a layer has the status of a queued layer until its first MiB has arrived.
        """
        self.progress = Progress()
        self._seconds = seconds or None
        self._has_queue = has_queue
        self._all_pulls = all_pulls
        self._moved = time.monotonic()
        super().__init__(seconds=self._seconds)

    def expiry(self) -> float | None:
        """Override `Scope.expiry`: later than the pull's own timeout while the pull may be queued."""
        own = super().expiry()
        if own is None or self._seconds is None or not self._has_queue or not self.progress.may_be_waiting:
            return own
        own_pulls = min(self._all_pulls.at + self._seconds, self._moved + QUEUED_FACTOR_OWN * self._seconds)
        others = self._moved + min(QUEUED_FACTOR_OTHER * self._seconds, LONGEST) if self.progress.is_waiting else own
        return max(own, own_pulls, others)

    def reset(self) -> None:
        """Restart the timeout after progress."""
        self._all_pulls.note()
        self._moved = time.monotonic()
        self.restart(None if self.progress.is_local else self._seconds)

    def extend(self, wait: float) -> None:
        """Restart the timeout `wait` seconds from now."""
        if self._seconds is not None:
            self.restart(wait + self._seconds)

    @property
    def is_over(self) -> bool:
        """Whether this pull made no progress for too long, regardless of other pulls."""
        own = super().expiry()
        return own is not None and time.monotonic() >= own

    @property
    def reason(self) -> str:
        """Why the pull was aborted, for the error message."""
        if not self.progress.is_waiting:
            return f"no progress for {self._seconds:g} s"
        silent = time.monotonic() - self._moved
        return f"no progress for {silent:.0f} s, while Docker queued it behind other pulls (max-concurrent-downloads)"


class Observer:
    """Passes the progress messages of a pull to its StallTimeout and to the log.

    A wait that Docker announces is not a stall: Docker will retry and resume. Aborting the pull would lose the part of
    the layer that has arrived.
    """

    def __init__(self, reference: str, timeout: StallTimeout) -> None:
        self._reference = reference
        self._timeout = timeout
        self._progress = timeout.progress
        self._report_at = time.monotonic() + _REPORT_SECONDS
        self._waits_until = 0.0
        self._waited = 0.0
        """Seconds of waits since the last progress; simultaneous waits of several layers count once."""

    def __call__(self, message: PullProgress) -> None:
        """Process a message."""
        is_further = self._progress.advance(message)
        wait = retry_seconds(message)
        if wait is not None:
            self._extend(wait)
        elif is_further:
            self._waited = 0.0
            self._timeout.reset()
            if time.monotonic() >= self._report_at:
                self._report(message)

    def _extend(self, wait: float) -> None:
        """Extend the timeout by Docker's wait before a retry, unless the waits add up to too much."""
        now = time.monotonic()
        self._waited += max(0.0, now + wait - max(now, self._waits_until))
        self._waits_until = max(self._waits_until, now + wait)
        if self._waited <= _RETRY_WAIT_SECONDS:
            self._timeout.extend(wait)

    def _report(self, message: PullProgress) -> None:
        self._report_at = time.monotonic() + _REPORT_SECONDS
        log.info(
            "pulling image",
            image=self._reference,
            layers=self._progress.layers,
            bytes=self._progress.downloaded,
            step=message.status,
        )
