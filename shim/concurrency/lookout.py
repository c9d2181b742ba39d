"""What may still happen when the call it belongs to is over, looked at until it has happened or its time is up."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from shim.errors import ShimError

LATE_SECONDS = 600.0
"""How long Docker may yet do what it was asked for and nobody waits for any more: it may be restarted first."""
LOOK_SECONDS = 2.0
"""Bound for a look that asks Docker: what it takes, all others wait."""
PAUSE_SECONDS = 1.0
"""Between two looks."""

log = structlog.get_logger(__name__)

Look = Callable[[], bool]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Watched:
    look: Look
    what: str
    until: float

    def is_over(self) -> bool:
        """Look once; whether that was the last time."""
        try:
            if self.look():
                return True
        except ShimError as error:
            log.debug("cannot check on", what=self.what, error=error)
        except Exception:
            log.exception("checking failed", what=self.what)
            return True
        if time.monotonic() < self.until:
            return False
        log.warning("gave up waiting for", what=self.what)
        return True


class Lookout:
    """One daemon thread for all that is watched, there as long as there is any. Thread-safe.

    One thread, for when Docker is stuck there may be hundreds to look at, and no look is in a hurry.
    """

    def __init__(self, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._running = False

    def watches(self, what: str) -> bool:
        """Whether this is watched."""
        return what in self._watched

    def forget(self, what: str) -> None:
        """Watch this no longer, but for a look under way. Idempotent."""
        with self._lock:
            self._watched.pop(what, None)

    def watch(self, look: Look, *, what: str, seconds: float) -> None:
        """Call `look` now and then until it gives True; at least once, and no more when `seconds` have passed.

        It takes the place of what is watched under the same name, `what`. A ShimError in it counts as False. It bounds
        its own waits: what it takes, the others wait. Where no thread is to be had now, the next call starts the one
        for all.
        """
        with self._lock:
            self._watched[what] = _Watched(look=look, what=what, until=time.monotonic() + seconds)
            if self._running:
                return
            try:
                threading.Thread(target=self._run, name="lookout", daemon=True).start()
                self._running = True
            except RuntimeError as error:
                log.warning("no thread to watch it with now", what=what, error=error)

    def stop(self) -> None:
        """Look at nothing any more, but for a look under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_seconds) and self._look_at_all():
            pass

    def _look_at_all(self) -> bool:
        """Look at each once; whether any is left."""
        with self._lock:
            watched = list(self._watched.values())
        over = [each for each in watched if each.is_over()]
        with self._lock:
            for each in over:
                if self._watched.get(each.what) is each:
                    del self._watched[each.what]
            self._running = bool(self._watched)
            return self._running
