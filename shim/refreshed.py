"""A value that is slow to find out: answered from memory, found out anew behind the scenes."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from shim import deadline
from shim.errors import ShimError

log = structlog.get_logger(__name__)

T = TypeVar("T")

REST = 20
"""A search that took long is followed by a rest of this many times its length: at most 5 % of one thread."""


class Refreshed(Generic[T]):
    """The last known value, at most `period` seconds old while somebody asks regularly. Thread-safe.

    Nothing happens while nobody asks.
    """

    def __init__(self, *, period: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period = period
        self._clock = clock
        self._changed = threading.Condition()
        self._value: T | None = None
        self._due = clock()
        self._searching = False
        self._complaint = ""

    def get(self, find: Callable[[], T], *, patience: float) -> T | None:
        """Give what is known; a value that is due is found out by `find` in a thread of its own.

        Only the callers before the first value wait for it, at most `patience` seconds and no longer than the
        current scope. None: not known yet, or `find` raised a ShimError, which is logged.
        """
        scope = deadline.current()
        with scope.on_cancel(self._wake), self._changed:
            if not self._searching and self._clock() >= self._due:
                self._searching = True
                threading.Thread(target=self._search, args=(find,), name="refresh", daemon=True).start()
            limit = time.monotonic() + (scope.remaining(patience) or 0.0)
            while self._value is None and self._searching and not scope.cancelled:
                left = limit - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            return self._value

    def _search(self, find: Callable[[], T]) -> None:
        began = self._clock()
        found: list[T] = []
        try:
            found.append(find())
            self._complaint = ""
        except ShimError as failure:
            self._complain(str(failure))
        finally:
            with self._changed:
                self._value = found[0] if found else self._value
                self._searching = False
                self._due = self._clock() + max(self._period, REST * (self._clock() - began))
                self._changed.notify_all()

    def _complain(self, complaint: str) -> None:
        # On change only: the same failure comes back every period.
        if complaint != self._complaint:
            log.warning("a value could not be refreshed; the last known one stays", error=complaint)
        self._complaint = complaint

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
