"""A gate between work that runs side by side and work that must run alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shim.base import deadline


class Gate:
    """Shared by many, or held by one alone. Waiting for the latter does not keep others from sharing. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._taken = False

    @contextmanager
    def shared(self, *, what: str) -> Iterator[None]:
        """Run the block beside others that share.

        The wait for a holder that is alone ends with the current scope: Cancelled or DeadlineExceeded, for `what`.
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
    def alone(self, *, seconds: float) -> Iterator[bool]:
        """Run the block while no other shares; yield False if that was not possible within `seconds`."""
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
