"""Wakes a thread that polls descriptors."""

import os
import threading
from contextlib import suppress
from typing import Self


class Waker:
    """An eventfd that `wake` makes readable. Thread-safe; a context manager that closes it."""

    def __init__(self) -> None:
        """Open the eventfd. Raise OSError if no descriptor is free."""
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor; -1 after `close`."""
        return self._fd

    def wake(self) -> None:
        """Make the descriptor readable until `drain`. Does nothing after `close`."""
        # The lock excludes `close`, after which the number may belong to another file.
        with self._lock, suppress(BlockingIOError):  # already readable
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def drain(self) -> None:
        """Make the descriptor unreadable until the next `wake`."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
