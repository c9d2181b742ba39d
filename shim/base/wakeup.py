"""Wake a thread that polls descriptors."""

import os
import threading
from contextlib import suppress
from typing import Self


class Waker:
    """A descriptor that `wake` makes readable, for polls and selectors. Thread-safe; as a context manager it closes."""

    def __init__(self) -> None:
        """Open it. OSError where no descriptor is free."""
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor; -1 once it is closed."""
        return self._fd

    def wake(self) -> None:
        """Make it readable until `drain`. Does nothing once it is closed."""
        # Under a lock: after a close the number may belong to another file.
        with self._lock, suppress(BlockingIOError):  # it is readable already
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def drain(self) -> None:
        """Make it unreadable again, until the next `wake`."""
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
