"""Locks by key: one RPC at a time for each sandbox name, image or file."""

import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial

from shim.base import deadline


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """The thread that holds a lock, and since when."""

    thread: str = field(default_factory=lambda: threading.current_thread().name)
    since: float = field(default_factory=time.monotonic)

    def row(self, lock: str, *, waiting: int) -> dict[str, object]:
        """Return the lock, its holder, the seconds since it was taken and the number of waiters, for the state dump."""
        seconds = round(time.monotonic() - self.since, 1)
        return {"lock": lock, "thread": self.thread, "seconds": seconds, "waiting": waiting}


class KeyedLocks:
    """A lock for each key. A key that nobody holds takes no memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[Hashable, list[Holder]] = {}
        self._waiting: Counter[Hashable] = Counter()

    def hold(self, key: Hashable) -> AbstractContextManager[None]:
        """Hold the lock of `key` inside the block. Raise Cancelled or DeadlineExceeded while waiting."""
        return self.hold_place(key, places=1)

    @contextmanager
    def hold_place(self, key: Hashable, *, places: int) -> Iterator[None]:
        """Hold one of `places` places of `key` inside the block: a semaphore. Raise as `hold` does."""
        with self._changed:
            self._waiting[key] += 1
        try:
            take = partial(self._try_take, key, places)
            holder = deadline.wait_for(self._changed, take, what=f"wait for the lock of {key}")
        finally:
            with self._changed:
                self._waiting[key] -= 1
                if not self._waiting[key]:
                    del self._waiting[key]
        assert holder is not None  # noqa: S101 - the wait has no limit
        try:
            yield
        finally:
            with self._changed:
                self._held[key].remove(holder)
                if not self._held[key]:
                    del self._held[key]
                self._changed.notify_all()

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each holder, oldest first, for the state dump."""
        with self._changed:
            held = [(key, holder) for key, holders in self._held.items() for holder in holders]
            waiting = self._waiting.copy()
        return [
            holder.row(str(key), waiting=waiting[key]) for key, holder in sorted(held, key=lambda each: each[1].since)
        ]

    def _try_take(self, key: Hashable, places: int) -> Holder | None:
        holders = self._held.setdefault(key, [])
        if len(holders) >= places:
            return None
        holders.append(Holder())
        return holders[-1]
