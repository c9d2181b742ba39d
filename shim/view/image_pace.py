"""Limits the rate of image inspects after events, to save Docker's time.

With the containerd image store an inspect costs as much as a `docker tag`: 25 ms with 1,000 images, 75 ms with 3,000.
Without a limit, the server would double the cost of each `docker tag`.
"""

import threading
import time
from collections.abc import Callable

QUIET_SECONDS = 5.0
"""Minimum seconds between two inspects of an image."""
SHARE = 0.01
"""Maximum share of time that Docker may spend on inspects of images."""
CREDIT_SECONDS = 0.25
"""Inspect time that may be used at once after a quiet period: about a hundred inspects on most nodes."""
_LONGEST = 1.0
"""Maximum seconds that an inspect counts. A longer inspect mostly means that Docker hung."""


class ImagePace:
    """Assigns each inspect its turn. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._cost = 0.0
        """Seconds that the last inspect took."""
        self._next = 0.0
        """When SHARE allows the next inspect."""
        self._turns: dict[str, float] = {}
        """The turns of waiting images."""
        self._patient: set[str] = set()
        """Waiting images without an event. Images with an event go first."""
        self._quiet: dict[str, float] = {}
        """When a recently inspected image may be inspected again."""

    def wait(self, key: str, *, patient: bool = False) -> float:
        """Return the seconds until the turn of an image; after 0 the caller must inspect it.

        An image that is not `patient` swaps its turn with the first patient image, if that turn is sooner.
        """
        with self._lock:
            now = self._clock()
            if key not in self._turns:
                free = max(self._next, now - CREDIT_SECONDS / SHARE)
                self._next = free + self._cost / SHARE
                self._turns[key] = max(free, self._quiet.get(key, now))
                if patient:
                    self._patient.add(key)
                else:
                    self._go_first(key)
            wait = max(0.0, self._turns[key] - now)
            if not wait:
                self._forget(key)
            return wait

    def end(self, key: str, *, seconds: float) -> None:
        """Record that the inspect of an image took `seconds`."""
        with self._lock:
            now = self._clock()
            self._cost = min(seconds, _LONGEST)
            self._quiet = {other: until for other, until in self._quiet.items() if until > now}
            self._quiet[key] = now + QUIET_SECONDS

    def clear(self) -> None:
        """Cancel all turns, because a list of all images has made them unnecessary."""
        with self._lock:
            self._turns.clear()
            self._patient.clear()
            self._next = min(self._next, self._clock())

    def drop(self, key: str) -> None:
        """Cancel the turn of an image that needs no inspect."""
        with self._lock:
            self._forget(key)

    def _go_first(self, key: str) -> None:
        """Swap the turn of an image with the first turn of a patient image, if that comes sooner."""
        first = min(self._patient, key=self._turns.__getitem__, default=key)
        if self._quiet.get(key, 0.0) <= self._turns[first] < self._turns[key]:
            self._turns[first], self._turns[key] = self._turns[key], self._turns[first]

    def _forget(self, key: str) -> None:
        self._turns.pop(key, None)
        self._patient.discard(key)
