"""Paces the inspects of images after events, so that they cost Docker little.

With the containerd image store an inspect costs Docker as much as a `docker tag`: 25 ms with 1,000 images, 75 ms with
3,000. Without pacing, the server would double the cost of ten `docker tag` a second.
"""

import threading
import time
from collections.abc import Callable

QUIET_SECONDS = 5.0
"""Minimum interval between two inspects of an image with continual events."""
SHARE = 0.01
"""Share of Docker's time that the inspects of all images may take."""
CREDIT_SECONDS = 0.25
"""Inspect time that may be used at once after a quiet period: about a hundred inspects on most nodes."""
_LONGEST = 1.0
"""Seconds that an inspect counts at most. A longer one mostly times out, and shows that Docker hung."""


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
        self._quiet: dict[str, float] = {}
        """When a recently inspected image may be inspected again."""

    def wait(self, key: str) -> float:
        """Return the seconds until the turn of an image; 0 starts its inspect."""
        with self._lock:
            now = self._clock()
            if key not in self._turns:
                free = max(self._next, now - CREDIT_SECONDS / SHARE)
                self._next = free + self._cost / SHARE
                self._turns[key] = max(free, self._quiet.get(key, now))
            wait = max(0.0, self._turns[key] - now)
            if not wait:
                del self._turns[key]
            return wait

    def end(self, key: str, *, seconds: float) -> None:
        """Record that the inspect of an image took `seconds`."""
        with self._lock:
            now = self._clock()
            self._cost = min(seconds, _LONGEST)
            self._quiet = {other: until for other, until in self._quiet.items() if until > now}
            self._quiet[key] = now + QUIET_SECONDS

    def drop(self, key: str) -> None:
        """Cancel the turn of an image that needs no inspect."""
        with self._lock:
            self._turns.pop(key, None)
