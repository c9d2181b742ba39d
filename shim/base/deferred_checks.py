"""Deferred checks: what may still happen when the call it belongs to is over, checked until it has, or time is up.

All checks of a server share one thread, so three bounds keep them from holding each other up. A check bounds its own
waits (LOOK_SECONDS). A round ends with the first check that Docker does not answer, and the next one goes on behind it:
with a Docker that is stuck, a hundred checks would else take minutes to fail one by one. And a round checks only a part
of many: see `_Kind.most`. Checks that mostly read memory have rounds of their own, before those that ask Docker.

The time a check is given counts only while Docker answers: it is there for what Docker does late, and a Docker that has
been stuck is not late before it goes on.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from shim.domain.errors import DeadlineExceeded, ShimError, Unavailable

LATE_SECONDS = 600.0
"""How long Docker may yet do what it was asked for and nobody waits for any more: it may be restarted first."""
LOOK_SECONDS = 2.0
"""Bound for a check that asks Docker: what it takes, all others wait."""
PAUSE_SECONDS = 1.0
"""Between two rounds."""
ROUND_SECONDS = 2.0
"""A round begins no further check after this time."""

LEAST_A_ROUND = 20
"""Checks that ask Docker in one round, at most, as long as they are few enough for the next constant."""
ROUNDS_FOR_ALL = 30
"""Of more, such a part is checked in a round that each has its turn after so many rounds."""

log = structlog.get_logger(__name__)

Look = Callable[[], bool]


class _Outcome(Enum):
    OVER = auto()
    """It has happened, or never will."""
    OPEN = auto()
    SILENCE = auto()
    """Docker has not answered."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Watched:
    look: Look
    what: str
    seconds: float
    began: float
    """By the monotonic clock."""
    asks: bool

    def check(self) -> _Outcome:
        try:
            return _Outcome.OVER if self.look() else _Outcome.OPEN
        except (Unavailable, DeadlineExceeded) as error:
            log.debug("cannot check: docker does not answer", what=self.what, error=error)
            return _Outcome.SILENCE
        except ShimError as error:
            log.debug("cannot check", what=self.what, error=error)
            return _Outcome.OPEN
        except Exception:
            log.exception("check failed", what=self.what)
            return _Outcome.OVER


@dataclass(slots=True, kw_only=True)
class _Kind:
    """Checks that ask Docker each time, or those that mostly read memory; and since when Docker answers them."""

    asks: bool
    silent: bool = False
    """Docker has not answered the last round at all. One that answers others of the same round is not silent: then it
    is a single container that hangs."""
    answering_since: float = 0.0

    def most(self, count: int) -> int:
        """How many of `count` are checked in one round."""
        return max(LEAST_A_ROUND, count // ROUNDS_FOR_ALL) if self.asks else count

    def note_answer(self) -> None:
        if self.silent:
            self.silent, self.answering_since = False, time.monotonic()

    def is_late(self, watched: _Watched) -> bool:
        """Whether a check has had its time."""
        return not self.silent and time.monotonic() >= max(watched.began, self.answering_since) + watched.seconds


class DeferredChecks:
    """One daemon thread for all deferred checks, there as long as there are any. Thread-safe.

    One thread, for when Docker is stuck there may be hundreds of them, and none is in a hurry.
    """

    def __init__(self, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        """By name; in each kind, the next one to be checked is the first."""
        self._kinds = (_Kind(asks=False), _Kind(asks=True))
        self._running = False

    def watches(self, what: str) -> bool:
        """Whether there is such a check."""
        return what in self._watched

    def forget(self, what: str) -> None:
        """Check this no longer, but for a check under way. Idempotent."""
        with self._lock:
            self._watched.pop(what, None)

    def watch(self, look: Look, *, what: str, seconds: float, asks: bool = True) -> None:
        """Call `look` now and then until it returns True; at least once, and no more after `seconds`.

        The seconds begin again when Docker answers after it did not: that is when a check raises Unavailable or
        DeadlineExceeded. Any other ShimError counts as False. `asks` says that each check asks Docker; one that mostly
        reads memory does not, and comes before them. A check bounds its own waits.

        It replaces the check of the same name, `what`. If no thread can be started now, the next call starts it.
        """
        with self._lock:
            self._watched.pop(what, None)
            self._watched[what] = _Watched(look=look, what=what, seconds=seconds, began=time.monotonic(), asks=asks)
            if self._running:
                return
            try:
                threading.Thread(target=self._run, name="deferred_checks", daemon=True).start()
                self._running = True
            except RuntimeError as error:
                log.warning("no thread for deferred checks now", what=what, error=error)

    def stop(self) -> None:
        """Check nothing any more, but for a check under way."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_seconds) and self._has_any():
            for kind in self._kinds:
                with self._lock:
                    watched = [each for each in self._watched.values() if each.asks is kind.asks]
                self._check(kind, watched[: kind.most(len(watched))])

    def _has_any(self) -> bool:
        with self._lock:
            self._running = bool(self._watched)
            return self._running

    def _check(self, kind: _Kind, watched: Sequence[_Watched]) -> None:
        """Do one round: check each once, up to the first that Docker does not answer, or until the time is up."""
        end = time.monotonic() + ROUND_SECONDS
        for number, each in enumerate(watched):
            outcome = each.check()
            if outcome is not _Outcome.SILENCE:
                kind.note_answer()
            elif number == 0:
                kind.silent = True
            self._keep(each, is_over=outcome is _Outcome.OVER or self._gives_up(kind, each))
            if outcome is _Outcome.SILENCE or time.monotonic() >= end:
                return

    @staticmethod
    def _gives_up(kind: _Kind, watched: _Watched) -> bool:
        late = kind.is_late(watched)
        if late:
            log.warning("deferred check given up: its time is over", what=watched.what, seconds=watched.seconds)
        return late

    def _keep(self, watched: _Watched, *, is_over: bool) -> None:
        """Put a check behind the others, or drop it; one that was replaced or forgotten meanwhile is no more."""
        with self._lock:
            if self._watched.get(watched.what) is not watched:
                return
            del self._watched[watched.what]
            if not is_over:
                self._watched[watched.what] = watched
