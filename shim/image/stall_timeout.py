"""The timeout of a pull without progress, and the observer of progress messages."""

import time

import structlog

from shim.base.deadline import LONGEST, ProgressClock, Scope
from shim.engine.answers import PullProgress
from shim.image.progress import Progress, retry_seconds

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 10.0
"""Interval of log lines about a pull that makes progress."""
_RETRY_WAIT_SECONDS = 60.0
"""Maximum total of Docker's waits before retries of a layer, without progress in between. By default Docker tries five
times, with waits of 50 seconds in total. With a hundred tries in its configuration it would wait for hours."""
QUEUED_FACTOR_OTHER = 10
"""Factor on the timeout while Docker queues a layer behind other pulls, perhaps a `docker pull`, whose progress the
server cannot see. An aborted pull would start again at the end of the queue. So it gets time for an image of some GiB,
ten minutes by default. It gets no more, because the layer may have left the queue, and wait for a registry that does
not answer."""
QUEUED_FACTOR_OWN = 60
"""Factor on the timeout while Docker queues a layer and other pulls of this server make progress: an hour by default.
Docker's queue is first come, first served."""


class StallTimeout(Scope):
    """The timeout of a pull without progress.

    Strategy: no thread watches it. The reader of the messages waits until `expiry`, then evaluates `expiry` again. If
    this pull is queued behind other pulls, their progress extends it.
    """

    __slots__ = ("_all_pulls", "_has_queue", "_moved", "_seconds", "progress")

    def __init__(self, seconds: float, *, all_pulls: ProgressClock, has_queue: bool) -> None:
        """Start the clock. The pull ends after `seconds` without progress, 0 means never.

        `all_pulls` is the progress clock of this server. `has_queue` says whether Docker queues layers. The containerd
        store does not queue, but reports a layer as queued until its first MiB has arrived.
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

    A wait that Docker announces is not a stall, because Docker will retry and resume. An abort would lose the received
    part of the layer.
    """

    def __init__(self, reference: str, timeout: StallTimeout) -> None:
        self._reference = reference
        self._timeout = timeout
        self._progress = timeout.progress
        self._report_at = time.monotonic() + _REPORT_SECONDS
        self._waits_until = 0.0
        self._waited = 0.0
        """Seconds of waits since the last progress. Simultaneous waits of several layers count once."""

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
        """Extend the timeout by Docker's wait before a retry, up to _RETRY_WAIT_SECONDS in total."""
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
