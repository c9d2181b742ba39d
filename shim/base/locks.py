"""Locks by name: one RPC at a time for each sandbox name, image or file, none for the rest."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from shim.base import deadline


class KeyedLocks:
    """A lock for each key that is in use right now; a key nobody holds takes no memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[Hashable] = set()

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Hold `key` inside the block. The wait ends with the current scope: Cancelled or DeadlineExceeded."""
        self._wait_held(key)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

    def _wait_held(self, key: Hashable) -> None:
        scope = deadline.current()
        with scope.on_cancel(self._wake), self._changed:
            while key in self._held:
                scope.check(f"wait for the lock of {key}")
                self._changed.wait(scope.remaining())
            self._held.add(key)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
