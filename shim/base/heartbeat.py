"""Liveness of the server's own processes. One that does not answer is killed and replaced.

With a log process that is stopped or stuck, Docker would otherwise rotate output away before it is copied, and ends
of containers would be shown without their last lines. With such a helper process for host paths, no container could be
created.
"""

import time

PING_SECONDS = 3.0
"""From the last answer to the next ping."""
ANSWER_SECONDS = 4.0
"""For any answer after a ping; with PING_SECONDS less than an exit waits for its last log lines (DRAIN_SECONDS). A
process that resumes a large log answers nothing for a while, so this doubles with each process that was killed."""
MAX_ANSWER_SECONDS = 64.0


class Heartbeat:
    """Pings and answers of one process. For one thread."""

    def __init__(self, *, answer_seconds: float | None = None) -> None:
        """Allow `answer_seconds` for any answer after a ping, ANSWER_SECONDS by default."""
        self._answer_seconds = ANSWER_SECONDS if answer_seconds is None else answer_seconds
        self._answered_at = time.monotonic()
        self._pinged_at: float | None = None

    def of_next(self) -> "Heartbeat":
        """Return the heartbeat of the next process, which has more time to answer where this one was lost."""
        more = min(2 * self._answer_seconds, MAX_ANSWER_SECONDS) if self.is_lost else None
        return Heartbeat(answer_seconds=more)

    def note_answer(self) -> None:
        """Record an answer, whatever it is."""
        self._answered_at, self._pinged_at = time.monotonic(), None

    def note_ping(self) -> None:
        """Record that it is being pinged."""
        self._pinged_at = time.monotonic()

    @property
    def is_ping_due(self) -> bool:
        """Return whether the next ping is due."""
        return self._pinged_at is None and self._until_ping() <= 0

    @property
    def is_lost(self) -> bool:
        """Return whether it has not answered a ping in time."""
        return self._pinged_at is not None and self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Return the seconds until a ping is due, or its answer is too late."""
        if self._pinged_at is None:
            return self._until_ping()
        return self._pinged_at + self._answer_seconds - time.monotonic()

    def _until_ping(self) -> float:
        return self._answered_at + PING_SECONDS - time.monotonic()
