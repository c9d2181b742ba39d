"""The queue of orders to the log process, and the wait for its answers."""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shim.base import deadline
from shim.base.wakeup import Waker
from shim.domain.errors import Unavailable
from shim.logs.protocol import Answer, Order


@dataclass(slots=True, eq=False)
class Pending:
    """An unanswered order."""

    ticket: int
    order: Order
    then: Callable[[Answer], None] | None
    """Called with the answer, in the thread that receives it."""
    answer: Answer | None = None


class Mailbox:
    """Keeps each order until it is answered. Thread-safe; `put` never waits."""

    def __init__(self) -> None:
        self.waker = Waker()
        """Readable if there are orders to send, or if the mailbox is closed."""
        self._changed = threading.Condition()
        self._tickets = itertools.count(1)
        self._unanswered: dict[int, Pending] = {}
        self._unsent: deque[Pending] = deque()
        self.closed = threading.Event()

    def close(self) -> None:
        """End all waits, because no answer will arrive."""
        self.closed.set()
        with self._changed:
            self._changed.notify_all()
        self.waker.wake()

    def put(self, order: Order, *, then: Callable[[Answer], None] | None = None) -> Pending:
        """Queue an order."""
        with self._changed:
            pending = Pending(next(self._tickets), order, then)
            self._unanswered[pending.ticket] = pending
            self._unsent.append(pending)
        self.waker.wake()
        return pending

    def wait_answer(self, pending: Pending, *, seconds: float, what: str) -> Answer:
        """Wait for the answer. Raise Unavailable after `seconds`, and Cancelled or DeadlineExceeded."""
        deadline.wait_for(self._changed, lambda: pending.answer or self.closed.is_set(), what=what, limit=seconds)
        if pending.answer is None:
            raise Unavailable(f"{what}: the log process does not answer")
        return pending.answer

    def take_answer(self, answer: Answer) -> None:
        """Deliver an answer of the log process to its waiting caller."""
        with self._changed:
            pending = self._unanswered.pop(answer.ticket, None)
            if pending is None:
                return
            pending.answer = answer
            self._changed.notify_all()
        if pending.then is not None:
            pending.then(answer)

    def withdraw(self, pending: Pending) -> None:
        """Forget an order that nobody waits for, so that the next process does not get it."""
        with self._changed:
            self._unanswered.pop(pending.ticket, None)

    def repeat(self, first: list[Order]) -> None:
        """Queue all orders for a new process: `first`, then all unanswered orders, in order.

        The orders of `first` are never repeated, because a later process gets a current list. An old Follow after a
        newer Drain would mean that the container runs again.
        """
        with self._changed:
            self._unsent.clear()
            self._unsent.extend(Pending(next(self._tickets), order, None) for order in first)
            self._unsent.extend(self._unanswered.values())

    def first_unsent(self) -> Pending | None:
        """Return the next order to send. It stays queued until `mark_sent`, which the same thread must call."""
        return self._unsent[0] if self._unsent else None

    def mark_sent(self) -> None:
        """Remove the first order from the queue after it was sent."""
        self._unsent.popleft()
