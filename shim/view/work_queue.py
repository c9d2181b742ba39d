"""The view's work queue: client-go's `RateLimitingInterface`, with a limit on the workers that retry.

A key is queued at most once, however often it is added, and only one worker at a time processes it. A failed key is
retried with back-off. Only some workers may process failed keys, so that hung inspects do not occupy all workers.
"""

import threading
import time

from shim.base.backoff import backoff

MAX_RETRY_SECONDS = 30.0
"""Maximum back-off in seconds."""

SHOWN_KEYS = 8
"""Maximum failing keys that `row` returns."""


class WorkQueue:
    """A queue of keys. Thread-safe.

    A worker calls `get`, then `forget` after a success or `add_rate_limited` after a failure, and `done` in any case.

    Workers are woken one at a time: a worker that takes a key while others are queued wakes the next worker. A key with
    a later due time than another key wakes no worker, because a waiting worker waits for the earliest due time.
    """

    def __init__(self, *, slow_workers: int, retry_seconds: float) -> None:
        """At most `slow_workers` process failed keys. The back-off starts at `retry_seconds` and doubles each time."""
        self._slow_workers = slow_workers
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._shut_down = False
        self._queue: dict[str, None] = {}
        self._processing: set[str] = set()
        self._again: dict[str, float] = {}
        """Keys that were added while being processed, with the delay in seconds after their processing."""
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def add(self, key: str) -> None:
        """Queue a key, so that its processing begins after this call."""
        self.add_after(key, 0.0)

    def add_after(self, key: str, seconds: float) -> None:
        """Queue a key in `seconds`, unless it is due sooner. If it is being processed, the delay starts at its end."""
        with self._changed:
            self._add_locked(key, seconds)

    def add_rate_limited(self, key: str) -> None:
        """Count a failure of a key, and queue the key after its back-off, unless it is due sooner."""
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            self._add_locked(key, backoff(failures, first=self._retry_seconds, longest=MAX_RETRY_SECONDS))

    def forget(self, key: str) -> None:
        """Reset the failures of a key after its success."""
        with self._changed:
            self._failures.pop(key, None)

    def num_requeues(self, key: str) -> int:
        """Return the failures of a key since its last success."""
        with self._changed:
            return self._failures.get(key, 0)

    def get(self) -> str | None:
        """Wait for the next key and return it; None once shut down. Call `done` with the key."""
        with self._changed:
            while not self._shut_down:
                key = self._take_locked()
                if key is not None:
                    if self._queue or self._due:
                        self._changed.notify()  # another worker takes the rest while this one works
                    return key
                self._changed.wait(self._seconds_until_due_locked())
            return None

    def done(self, key: str) -> None:
        """End the processing of a key, and queue it again if it was added meanwhile."""
        with self._changed:
            self._processing.discard(key)
            after = self._again.pop(key, None)
            if after is not None:
                self._add_locked(key, after)

    def row(self) -> dict[str, object]:
        """Return the state of the queue for people: numbers of keys, and a few failing keys."""
        with self._changed:
            return {
                "queued": len(self._queue),
                "processing": sorted(self._processing),
                "due_later": len(self._due),
                "failing": len(self._failures),
                "most_failures": sorted(self._failures, key=lambda key: -self._failures[key])[:SHOWN_KEYS],
            }

    def shut_down(self) -> None:
        """Make `get` return None from now on, and wake all waiting workers."""
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()

    def _add_locked(self, key: str, seconds: float) -> None:
        if key in self._processing:
            self._again[key] = min(seconds, self._again.get(key, seconds))
            return
        if seconds and key not in self._queue:
            due = time.monotonic() + seconds
            is_first = all(due < other for other in self._due.values())
            self._due[key] = min(due, self._due.get(key, due))
            if not is_first:
                return
        else:
            self._due.pop(key, None)
            self._queue[key] = None
        self._changed.notify()

    def _take_locked(self) -> str | None:
        now = time.monotonic()
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            self._queue[key] = None
        slow = sum(key in self._failures for key in self._processing)
        for key in self._queue:
            if key not in self._failures or slow < self._slow_workers:
                del self._queue[key]
                self._processing.add(key)
                return key
        return None

    def _seconds_until_due_locked(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
