"""Orders on their way to the log process, and those who wait for the answers."""

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from shim.base import deadline
from shim.domain.errors import Unavailable
from shim.logs.protocol import Answer, Order


@dataclass(slots=True, eq=False)
class Pending:
    """An order that was given."""

    ticket: int
    order: Order
    then: Callable[[Answer], None] | None
    """Called with the answer, by the thread that read it."""
    answer: Answer | None = None


class Mailbox:
    """Holds every order that was put in until it is answered. Thread-safe; to put one in never waits."""

    def __init__(self) -> None:
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when there is something to send, or it was closed."""
        self._changed = threading.Condition()
        self._tickets = itertools.count(1)
        self._unanswered: dict[int, Pending] = {}
        self._unsent: deque[Pending] = deque()
        self.closed = threading.Event()

    def close(self) -> None:
        """Say that nothing will be answered any more."""
        self.closed.set()
        self._notify()
        self._awake()

    def put(self, order: Order, *, then: Callable[[Answer], None] | None = None) -> Pending:
        """Give an order."""
        with self._changed:
            pending = Pending(next(self._tickets), order, then)
            self._unanswered[pending.ticket] = pending
            self._unsent.append(pending)
        self._awake()
        return pending

    def wait_answer(self, pending: Pending, *, seconds: float, what: str) -> Answer:
        """Wait for the answer; Unavailable after `seconds`, besides what ends the current scope."""
        scope = deadline.current()
        end = time.monotonic() + seconds
        with scope.on_cancel(self._notify), self._changed:
            while pending.answer is None:
                scope.check(what)
                left = end - time.monotonic()
                if left <= 0 or self.closed.is_set():
                    raise Unavailable(f"{what}: the log process does not answer")
                self._changed.wait(scope.remaining(left))
            return pending.answer

    def take_answer(self, answer: Answer) -> None:
        """Hand out what the log process has answered."""
        with self._changed:
            pending = self._unanswered.pop(answer.ticket, None)
            if pending is None:
                return
            pending.answer = answer
            self._changed.notify_all()
        if pending.then is not None:
            pending.then(answer)

    def repeat(self, first: list[Order]) -> None:
        """Begin anew with another process: send it `first`, then all that has had no answer yet, in order.

        `first` is for this process alone. The next one gets another, and an old Follow behind a newer Drain would tell
        it that a container runs again.
        """
        with self._changed:
            self._unsent.clear()
            self._unsent.extend(Pending(next(self._tickets), order, None) for order in first)
            self._unsent.extend(self._unanswered.values())

    def first_unsent(self) -> Pending | None:
        """Give the order that is to be sent next; it stays until `sent`. For one thread only, as is `sent`."""
        return self._unsent[0] if self._unsent else None

    def sent(self) -> None:
        """Say that the first order has been sent."""
        self._unsent.popleft()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _awake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            os.eventfd_write(self.wake, 1)
