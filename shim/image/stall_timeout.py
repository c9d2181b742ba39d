"""How long a pull may show no progress, and what it shows."""

import time

import structlog

from shim.base.deadline import LONGEST, ProgressClock, Scope
from shim.engine.answers import PullProgress
from shim.image.progress import Progress, retry_seconds

log = structlog.get_logger(__name__)

_REPORT_SECONDS = 10.0
"""A pull is mentioned in the log when it takes longer, and again that often while it moves on."""
_WAITS_SECONDS = 60.0
"""How long Docker may wait, without any progress in between, to ask again for layers that it did not get. By default
it tries five times, with waits of 50 seconds in all; a daemon that was told to try a hundred times waits for hours."""
_UNSEEN = 10
"""How many times as long a layer may be silent that Docker lets wait for others. They may be those of a `docker pull`,
of which we hear nothing. A pull that is cut comes to the end of the queue when it is tried again, so it is given time
for an image of some GiB (ten minutes by default); not more, as the layer may have got its slot meanwhile, and wait for
a registry that does not answer."""
_SEEN = 60
"""The same while other pulls of this server move on: by default an hour. Docker's queue is first come, first served."""


class StallTimeout(Scope):
    """The bound on the silence of one pull; begins anew with each progress.

    No thread watches it: the one that reads the messages waits no longer than this allows, and asks again when that
    has passed. By then, others may have moved on that this pull has to wait for.
    """

    __slots__ = ("_has_queue", "_motion", "_moved", "_seconds", "progress")

    def __init__(self, seconds: float, *, motion: ProgressClock, has_queue: bool) -> None:
        """`seconds` of silence end the pull, 0 is never; `motion` is that of all pulls of this server.

        `has_queue` tells whether Docker lets pulls wait for each other. The containerd store does not, and has no word
        but that for a layer that has not begun until its first MiB is there.
        """
        self.progress = Progress()
        self._seconds = seconds or None
        self._has_queue = has_queue
        self._motion = motion
        self._moved = time.monotonic()
        super().__init__(seconds=self._seconds)

    def expiry(self) -> float | None:
        """Implement `Scope.expiry`. It is later than the pull's own silence allows while it may be queued."""
        own = super().expiry()
        if own is None or self._seconds is None or not self._has_queue or not self.progress.may_be_waiting:
            return own
        seen = min(self._motion.at + self._seconds, self._moved + _SEEN * self._seconds)
        unseen = self._moved + min(_UNSEEN * self._seconds, LONGEST) if self.progress.is_waiting else own
        return max(own, seen, unseen)

    def begin_anew(self) -> None:
        """Take note of progress."""
        self._motion.note()
        self._moved = time.monotonic()
        self.restart(None if self.progress.is_local else self._seconds)

    def bear(self, wait: float) -> None:
        """Let this many seconds pass before silence counts."""
        if self._seconds is not None:
            self.restart(wait + self._seconds)

    @property
    def is_over(self) -> bool:
        """Whether the pull was silent for longer than it may be of itself, whatever others have done since."""
        own = super().expiry()
        return own is not None and time.monotonic() >= own

    @property
    def verdict(self) -> str:
        """Why the pull was ended."""
        if not self.progress.is_waiting:
            return f"no progress for {self._seconds:g} s"
        silent = time.monotonic() - self._moved
        return f"no progress for {silent:.0f} s, while docker let it wait for other pulls (max-concurrent-downloads)"


class Observer:
    """Tells a pull's StallTimeout, and the log, what its progress messages say.

    A wait that Docker announces is no silence: it is about to try again, and goes on where it was. What it has of the
    layer would be lost if we ended it.
    """

    def __init__(self, reference: str, patience: StallTimeout) -> None:
        self._reference = reference
        self._patience = patience
        self._progress = patience.progress
        self._report_at = time.monotonic() + _REPORT_SECONDS
        self._waits_until = 0.0
        self._waited = 0.0
        """Seconds of the waits since the last progress; those of several layers at the same time count once."""

    def __call__(self, message: PullProgress) -> None:
        """Take in one message."""
        is_further = self._progress.advance(message)
        wait = retry_seconds(message)
        if wait is not None:
            self._bear(wait)
        elif is_further:
            self._waited = 0.0
            self._patience.begin_anew()
            if time.monotonic() >= self._report_at:
                self._report(message)

    def _bear(self, wait: float) -> None:
        """Let a wait of Docker's pass, in seconds from now, while there have not been too many."""
        now = time.monotonic()
        self._waited += max(0.0, now + wait - max(now, self._waits_until))
        self._waits_until = max(self._waits_until, now + wait)
        if self._waited <= _WAITS_SECONDS:
            self._patience.bear(wait)

    def _report(self, message: PullProgress) -> None:
        self._report_at = time.monotonic() + _REPORT_SECONDS
        log.info(
            "pulling an image",
            image=self._reference,
            layers=self._progress.layers,
            bytes=self._progress.downloaded,
            step=message.status,
        )
