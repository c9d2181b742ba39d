"""Detects child processes that have stopped or hang, so that the server can kill and replace them.

Without it, a log process that hangs would let Docker rotate output away before it is copied, and containers would be
shown as exited without their last lines. While the helper for host paths hangs, no container could be created.
"""

import time

PING_SECONDS = 3.0
"""Time from the last answer to the next ping."""
ANSWER_SECONDS = 4.0
"""Time for any answer after a ping. With PING_SECONDS it is shorter than DRAIN_SECONDS, for which an exit waits for its
last log lines. A process that resumes a large log answers late, so this doubles with each process that was killed."""
MAX_ANSWER_SECONDS = 64.0


class Heartbeat:
    """Pings and answers of one process. Not thread-safe."""

    def __init__(self, *, answer_seconds: float | None = None) -> None:
        """Allow `answer_seconds` for an answer after a ping; by default ANSWER_SECONDS."""
        self._answer_seconds = ANSWER_SECONDS if answer_seconds is None else answer_seconds
        self._answered_at = time.monotonic()
        self._pinged_at: float | None = None

    def of_next(self) -> "Heartbeat":
        """Return the heartbeat of the next process, with twice the time to answer if this process was lost."""
        more = min(2 * self._answer_seconds, MAX_ANSWER_SECONDS) if self.is_lost else None
        return Heartbeat(answer_seconds=more)

    def note_answer(self) -> None:
        """Record that the process has answered anything."""
        self._answered_at, self._pinged_at = time.monotonic(), None

    def note_ping(self) -> None:
        """Record that a ping is sent."""
        self._pinged_at = time.monotonic()

    @property
    def is_ping_due(self) -> bool:
        """Return whether the next ping is due."""
        return self._pinged_at is None and self._until_ping() <= 0

    @property
    def is_lost(self) -> bool:
        """Return whether the process has not answered a ping in time."""
        return self._pinged_at is not None and self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Return the seconds until the next ping is due, or until its answer is overdue."""
        if self._pinged_at is None:
            return self._until_ping()
        return self._pinged_at + self._answer_seconds - time.monotonic()

    def _until_ping(self) -> float:
        return self._answered_at + PING_SECONDS - time.monotonic()
