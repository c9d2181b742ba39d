"""A bound on silence instead of a bound on time."""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Watchdog:
    """Calls `bark` once when it is not fed for `seconds` inside its block; 0 never barks. Thread-safe.

    It sleeps until the moment it might have to bark, and feeding it only notes the time.
    """

    def __init__(self, *, seconds: float, bark: Callable[[], None]) -> None:
        self._seconds = seconds
        self._bark = bark
        self._changed = threading.Condition()
        self._expires: float | None = None
        self._closed = False
        self._barked = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    @property
    def barked(self) -> bool:
        """Whether the silence was too long."""
        return self._barked

    def feed(self, *, rest: bool = False) -> None:
        """Begin the time anew; with `rest` it may stay silent until it is fed again."""
        with self._changed:
            resting = self._expires is None
            self._expires = None if rest else time.monotonic() + self._seconds
            if resting and not rest:
                self._changed.notify_all()

    def __enter__(self) -> Self:
        if self._seconds > 0:
            self.feed()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                left = None if self._expires is None else self._expires - time.monotonic()
                if left is not None and left <= 0:
                    self._barked = True
                    break
                self._changed.wait(left)
        if self._barked:
            self._bark()
