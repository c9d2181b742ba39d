"""Polls conditions that may become true after their RPC has ended, until they are true or time out.

All checks share one thread. Three bounds keep them from delaying each other:
- A check bounds its own waits (CHECK_SECONDS).
- A round ends with the first check that Docker does not answer, and the next round continues after that check.
  Otherwise a hundred checks would take minutes to fail one by one while Docker hangs.
- A round runs only a part of many checks (`_Kind.round_size`).
Checks that mostly read memory run first, in separate rounds.

The timeout of a check is for an operation that Docker completes late. It counts only while Docker answers, since a
Docker that hangs completes the operation only after it has recovered.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import structlog

from shim.domain.errors import DeadlineExceeded, ShimError, Unavailable

LATE_SECONDS = 600.0
"""Time for Docker to complete a request whose caller has given up. Docker may be restarted in the meantime."""
CHECK_SECONDS = 2.0
"""Bound for a check that asks Docker, since all other checks wait for it."""
PAUSE_SECONDS = 1.0
"""Pause between two rounds."""
ROUND_SECONDS = 2.0
"""After this time a round starts no further check."""

MIN_ROUND_SIZE = 20
"""Minimum of checks that ask Docker in one round; FULL_CYCLE_ROUNDS may require more."""
FULL_CYCLE_ROUNDS = 30
"""Every check runs at least once in this number of rounds."""

log = structlog.get_logger(__name__)

Check = Callable[[], bool]


class _Outcome(Enum):
    DONE = auto()
    """The condition is true, or the check failed with an unexpected error."""
    PENDING = auto()
    NO_ANSWER = auto()
    """Docker has not answered."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _DeferredCheck:
    condition: Check
    what: str
    seconds: float
    began: float
    """By the monotonic clock."""
    asks_docker: bool

    def run(self) -> _Outcome:
        try:
            return _Outcome.DONE if self.condition() else _Outcome.PENDING
        except (Unavailable, DeadlineExceeded) as error:
            log.debug("deferred check postponed: no answer from Docker", what=self.what, error=error)
            return _Outcome.NO_ANSWER
        except ShimError as error:
            log.debug("deferred check failed, will retry", what=self.what, error=error)
            return _Outcome.PENDING
        except Exception:
            log.exception("deferred check failed", what=self.what)
            return _Outcome.DONE


@dataclass(slots=True, kw_only=True)
class _Kind:
    """A kind of checks, those that ask Docker or those that mostly read memory, and since when Docker answers them."""

    asks_docker: bool
    no_answer: bool = False
    """Docker answered no check of the last round. If it answers some checks of a round, only single containers hang."""
    answering_since: float = 0.0

    def round_size(self, count: int) -> int:
        """Return the number of checks in a round, of `count` checks in total."""
        return max(MIN_ROUND_SIZE, count // FULL_CYCLE_ROUNDS) if self.asks_docker else count

    def note_answer(self) -> None:
        if self.no_answer:
            self.no_answer, self.answering_since = False, time.monotonic()

    def has_timed_out(self, check: _DeferredCheck) -> bool:
        """Return whether `check` has timed out."""
        return not self.no_answer and time.monotonic() >= max(check.began, self.answering_since) + check.seconds


class DeferredChecks:
    """Runs all deferred checks in one daemon thread, which ends when no check is left. Thread-safe.

    One thread is enough, since no check is urgent, and there may be hundreds while Docker hangs.
    """

    def __init__(self, *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._checks: dict[str, _DeferredCheck] = {}
        """By name, in the order they will run."""
        self._kinds = (_Kind(asks_docker=False), _Kind(asks_docker=True))
        self._running = False

    def is_pending(self, what: str) -> bool:
        """Return whether there is a check named `what`."""
        return what in self._checks

    def forget(self, what: str) -> None:
        """Remove a check. A run that has begun goes on. Idempotent."""
        with self._lock:
            self._checks.pop(what, None)

    def add(self, condition: Check, *, what: str, seconds: float, asks_docker: bool = True) -> None:
        """Poll `condition` until it returns True: at least once, and for at most `seconds`.

        A condition that raises Unavailable or DeadlineExceeded shows an outage of Docker; the time starts again at the
        end of an outage. Any other ShimError counts as False. The condition must bound its own waits. Pass
        `asks_docker=False` if it mostly reads memory.

        The check replaces an earlier check named `what`. If no thread can be started now, the next call starts it.
        """
        with self._lock:
            self._checks.pop(what, None)
            self._checks[what] = _DeferredCheck(
                condition=condition, what=what, seconds=seconds, began=time.monotonic(), asks_docker=asks_docker
            )
            if self._running:
                return
            try:
                threading.Thread(target=self._run, name="deferred-checks", daemon=True).start()
                self._running = True
            except RuntimeError as error:
                log.warning("cannot start thread of deferred checks", what=what, error=error)

    def stop(self) -> None:
        """Stop the thread after the current round."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_seconds) and self._has_any():
            for kind in self._kinds:
                with self._lock:
                    checks = [each for each in self._checks.values() if each.asks_docker is kind.asks_docker]
                self._run_round(kind, checks[: kind.round_size(len(checks))])

    def _has_any(self) -> bool:
        with self._lock:
            self._running = bool(self._checks)
            return self._running

    def _run_round(self, kind: _Kind, checks: Sequence[_DeferredCheck]) -> None:
        """Run each check once, until Docker does not answer a check or ROUND_SECONDS have passed."""
        end = time.monotonic() + ROUND_SECONDS
        for number, each in enumerate(checks):
            outcome = each.run()
            if outcome is not _Outcome.NO_ANSWER:
                kind.note_answer()
            elif number == 0:
                kind.no_answer = True
            self._requeue_or_drop(each, is_over=outcome is _Outcome.DONE or self._has_timed_out(kind, each))
            if outcome is _Outcome.NO_ANSWER or time.monotonic() >= end:
                return

    @staticmethod
    def _has_timed_out(kind: _Kind, check: _DeferredCheck) -> bool:
        timed_out = kind.has_timed_out(check)
        if timed_out:
            log.warning("deferred check timed out", what=check.what, seconds=check.seconds)
        return timed_out

    def _requeue_or_drop(self, check: _DeferredCheck, *, is_over: bool) -> None:
        """Move a check to the end of the queue, or drop it, unless it was replaced or removed in the meantime."""
        with self._lock:
            if self._checks.get(check.what) is not check:
                return
            del self._checks[check.what]
            if not is_over:
                self._checks[check.what] = check
