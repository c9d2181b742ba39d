"""What the view must look at again: each thing once, however often it changed, and by one worker at a time.

What failed is tried again later, and only by some of the workers at once: containers whose inspect hangs must leave
workers for all others.
"""

import threading
import time

RETRY_MOST = 30.0
"""Longest time in seconds between two tries."""


class WorkQueue:
    """A queue of keys. Thread-safe.

    One worker is woken at a time: whoever ends a look asks for the next key itself, and whoever takes a key while
    there is more to do wakes the next.
    """

    def __init__(self, *, slow_workers: int, retry_seconds: float) -> None:
        """At most `slow_workers` work on keys that failed; `retry_seconds` is the first wait, doubled each time."""
        self._slow_workers = slow_workers
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._closed = False
        self._waiting: dict[str, None] = {}
        self._running: set[str] = set()
        self._again: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def mark(self, key: str, *, after: float = 0.0) -> None:
        """Ask for a look that begins after this call, in `after` seconds unless one is due sooner.

        It is one look for all that changes until then. The wait begins at the end of a look that is under way.
        """
        with self._changed:
            if key in self._running:
                self._again[key] = min(after, self._again.get(key, after))
            else:
                self._enqueue(key, after=after)
                self._changed.notify()

    def mark_failed(self, key: str) -> None:
        """Ask for another look at what failed elsewhere, after a while."""
        with self._changed:
            if key not in self._running and key not in self._waiting:
                self._postpone(key)

    def wait_next(self) -> str | None:
        """Give the next key to look at, and then `done` or `failed` must be told of it. None when closed."""
        with self._changed:
            while not self._closed:
                key = self._take()
                if key is not None:
                    if self._waiting or self._due:
                        self._changed.notify()  # somebody has to look after the rest while this one works
                    return key
                self._changed.wait(self._until_due())
            return None

    def done(self, key: str) -> None:
        """Say that the look at `key` is over."""
        with self._changed:
            self._running.discard(key)
            self._failures.pop(key, None)
            self._repeat(key)

    def failed(self, key: str) -> None:
        """Say that the look at `key` failed; it is tried again later, or sooner if it was marked meanwhile."""
        with self._changed:
            self._running.discard(key)
            self._postpone(key)
            self._repeat(key)

    def put_off(self, key: str) -> None:
        """Say that `key` could not be looked at through no fault of its own: tried again as after one failure."""
        with self._changed:
            self._running.discard(key)
            self._repeat(key)
            self._enqueue(key, after=self._retry_seconds)
            self._changed.notify()

    def forgive(self, key: str) -> None:
        """Say that a look elsewhere has succeeded: it has not failed before."""
        with self._changed:
            self._failures.pop(key, None)

    def failures(self, key: str) -> int:
        """How many looks at `key` have failed one after the other."""
        with self._changed:
            return self._failures.get(key, 0)

    def close(self) -> None:
        """Give out nothing more, and wake all that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self) -> str | None:
        now = time.monotonic()
        for key in [key for key, due in self._due.items() if due <= now]:
            del self._due[key]
            self._waiting[key] = None
        slow = sum(key in self._failures for key in self._running)
        for key in self._waiting:
            if key not in self._failures or slow < self._slow_workers:
                del self._waiting[key]
                self._running.add(key)
                return key
        return None

    def _until_due(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _postpone(self, key: str) -> None:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        wait = self._retry_seconds * 2 ** min(failures - 1, 16)
        self._due[key] = time.monotonic() + min(wait, RETRY_MOST)
        self._changed.notify()

    def _repeat(self, key: str) -> None:
        after = self._again.pop(key, None)
        if after is not None:
            self._enqueue(key, after=after)

    def _enqueue(self, key: str, *, after: float) -> None:
        if after and key not in self._waiting:
            due = time.monotonic() + after
            self._due[key] = min(due, self._due.get(key, due))
        else:
            self._due.pop(key, None)
            self._waiting[key] = None
