"""The timeout of a pull that makes no progress, and the observer of its progress messages."""

import time

import structlog

from shim.base.deadline import LONGEST, ProgressClock, Scope
from shim.engine.answers import PullProgress
from shim.image.progress import Progress, retry_seconds

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 10.0
"""A pull is logged when it takes longer, and again at this interval while it makes progress."""
_RETRY_WAIT_SECONDS = 60.0
"""Sum of the waits before Docker's retries of a layer, without any progress in between. By default Docker tries five
times, with waits of 50 seconds in all; a daemon configured for a hundred tries waits for hours."""
QUEUED_FACTOR_OTHER = 10
"""Factor on the timeout while Docker queues a layer behind others, perhaps of a `docker pull` whose progress we do not
see. A pull that is ended goes to the end of the queue when it is tried again, so it gets time for an image of some GiB
(ten minutes by default); not more, since the layer may have got its slot, and wait for a registry that does not
answer."""
QUEUED_FACTOR_OWN = 60
"""The same while other pulls of this server make progress: by default an hour. Docker's queue is first come, first
served."""


class StallTimeout(Scope):
    """The bound on the time without progress of one pull; each progress resets it.

    Strategy: no thread watches it. The reader of the messages waits until `expiry`, then asks for `expiry` again: by
    then, other pulls that this one is queued behind may have made progress, which extends it.
    """

    __slots__ = ("_all_pulls", "_has_queue", "_moved", "_seconds", "progress")

    def __init__(self, seconds: float, *, all_pulls: ProgressClock, has_queue: bool) -> None:
        """Start the clock. The pull ends after `seconds` without progress, 0 is never.

        `all_pulls` is the progress clock of this server. `has_queue` is whether Docker queues layers of pulls. The
        containerd store does not; there a layer shows the step of a queued one until its first MiB has arrived.
        """
        self.progress = Progress()
        self._seconds = seconds or None
        self._has_queue = has_queue
        self._all_pulls = all_pulls
        self._moved = time.monotonic()
        super().__init__(seconds=self._seconds)

    def expiry(self) -> float | None:
        """Implement `Scope.expiry`. It is later than the pull's own silence allows while it may be queued."""
        own = super().expiry()
        if own is None or self._seconds is None or not self._has_queue or not self.progress.may_be_waiting:
            return own
        own_pulls = min(self._all_pulls.at + self._seconds, self._moved + QUEUED_FACTOR_OWN * self._seconds)
        others = self._moved + min(QUEUED_FACTOR_OTHER * self._seconds, LONGEST) if self.progress.is_waiting else own
        return max(own, own_pulls, others)

    def reset(self) -> None:
        """Note progress: the time without it starts again."""
        self._all_pulls.note()
        self._moved = time.monotonic()
        self.restart(None if self.progress.is_local else self._seconds)

    def extend(self, wait: float) -> None:
        """Start the timeout again after `wait` seconds from now."""
        if self._seconds is not None:
            self.restart(wait + self._seconds)

    @property
    def is_over(self) -> bool:
        """Whether this pull was without progress for too long, regardless of the progress of others."""
        own = super().expiry()
        return own is not None and time.monotonic() >= own

    @property
    def reason(self) -> str:
        """Why the pull was ended, for the error message."""
        if not self.progress.is_waiting:
            return f"no progress for {self._seconds:g} s"
        silent = time.monotonic() - self._moved
        return f"no progress for {silent:.0f} s, while docker queued it behind other pulls (max-concurrent-downloads)"


class Observer:
    """Passes the progress messages of a pull to its StallTimeout and to the log.

    A wait that Docker announces is not a stall: it will try again and continue where it was. Ending the pull would lose
    the part of the layer that has arrived.
    """

    def __init__(self, reference: str, timeout: StallTimeout) -> None:
        self._reference = reference
        self._timeout = timeout
        self._progress = timeout.progress
        self._report_at = time.monotonic() + _REPORT_SECONDS
        self._waits_until = 0.0
        self._waited = 0.0
        """Seconds of the waits since the last progress; those of several layers at the same time count once."""

    def __call__(self, message: PullProgress) -> None:
        """Process one message."""
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
        """Extend the timeout by Docker's wait before a retry, in seconds from now, unless those sum up to too much."""
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
