"""A lock that many threads can share, or one thread can hold exclusively."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shim.base import deadline


class RwLock:
    """A readers-writer lock. A thread that waits for exclusive access does not block those that share. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._taken = False

    @contextmanager
    def shared(self, *, what: str) -> Iterator[None]:
        """Share the lock inside the block.

        Raise Cancelled or DeadlineExceeded, which name `what`, if the current scope ends while another thread holds the
        lock exclusively.
        """
        with self._changed:
            deadline.wait_for(self._changed, lambda: not self._taken, what=what)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def exclusive(self, *, seconds: float) -> Iterator[bool]:
        """Hold the lock exclusively inside the block; yield False if it was not free within `seconds`."""
        with self._changed:
            free = self._changed.wait_for(lambda: not self._sharing and not self._taken, seconds)
            self._taken = self._taken or free
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._taken = False
                    self._changed.notify_all()
