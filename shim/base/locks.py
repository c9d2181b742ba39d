"""Locks by name: one RPC at a time for each sandbox name, image or file, none for the rest."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

from shim.base import deadline


class KeyedLocks:
    """A lock for each key that is in use right now; a key that is not held takes no memory."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: set[Hashable] = set()

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Hold `key` inside the block. The wait ends with the current scope: Cancelled or DeadlineExceeded."""
        deadline.wait_for(self._changed, lambda: self._try_take(key), what=f"wait for the lock of {key}")
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(key)
                self._changed.notify_all()

    def _try_take(self, key: Hashable) -> bool:
        is_free = key not in self._held
        self._held.add(key)
        return is_free
