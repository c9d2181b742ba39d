"""When an image that an event has named is inspected, so that this costs Docker little beside what caused the events.

With the containerd image store an inspect takes Docker as long as a `docker tag`: 25 ms with 1,000 images, 75 ms with
3,000. Ten tags a second by hand would cost twice as much with the server as without it.
"""

import threading
import time
from collections.abc import Callable

QUIET_SECONDS = 5.0
"""Between two inspects of one image that has one event after another."""
SHARE = 0.01
"""Of the time that such inspects may take, of all images together."""
CREDIT_SECONDS = 0.25
"""Of inspects that begin at once after a while without any: some hundred on most nodes."""


class Pace:
    """Gives each inspect its turn. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._cost = 0.0
        """Seconds of the last inspect."""
        self._next = 0.0
        """When the next inspect may begin by the share."""
        self._turns: dict[str, float] = {}
        """When the images that wait have their turn."""
        self._quiet: dict[str, float] = {}
        """Until when an image that was inspected a moment ago is not inspected again."""

    def wait(self, key: str) -> float:
        """Return in how many seconds an image has its turn. With 0 its inspect begins."""
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
        """Note that the inspect of an image has ended, after so long."""
        with self._lock:
            now = self._clock()
            self._cost = seconds
            self._quiet = {other: until for other, until in self._quiet.items() if until > now}
            self._quiet[key] = now + QUIET_SECONDS

    def drop(self, key: str) -> None:
        """Give up the turn of an image that need not be inspected any more."""
        with self._lock:
            self._turns.pop(key, None)
