"""One source, many subscribers, none of which can hold up the source or another subscriber.

Each subscriber has a queue of bounded length. One that does not keep up is dropped with an error that says so:
leaving out items in silence would make it believe what is no longer true.

`Broadcast.wait_taken` waits until the clients of all subscribers have what was published. How long one of them may keep
an item to itself is counted in short waits and not by a clock: when the machine, or the interpreter, stalls, the wait
under way is late as well and counts as one, and the subscriber runs before the count is full.
"""

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Self, TypeVar

from shim.base import deadline
from shim.domain.errors import ResourceExhausted, ShimError

T = TypeVar("T")

_TICK = 0.01
"""Seconds of one wait for a subscriber."""
_TICKS_IDLE = 10
"""Waits in which a client takes nothing while it has an item: 100 ms."""
_TICKS = 200
"""Waits for one that takes what was published before, but does not come to its end: 2 s."""


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """A place in the queue of a subscriber."""

    place: int
    """How many items have been added up to here."""
    passed: threading.Event = field(default_factory=threading.Event)


class Subscription(Generic[T]):
    """The items that one subscriber has yet to read. A context manager; leaving it ends the subscription."""

    def __init__(self, source: "Broadcast[T]", *, capacity: int) -> None:
        self._source = source
        self._capacity = capacity
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._end: ShimError | None = None
        self._added = self._taken = 0
        self._handed = 0
        """Number of the item in the client's hands, 0 for none."""
        self._marks: deque[_Mark] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.unsubscribe(self)

    @property
    def has_ended(self) -> bool:
        """Return whether no further item will be added."""
        return self._end is not None

    def wait_next(self) -> T:
        """Wait for the next item and return it.

        Raise what the source ended with, once everything before it has been read; ResourceExhausted for a
        subscriber that was dropped; and what ends the current scope.
        """
        with self._changed:
            deadline.wait_for(self._changed, self._is_readable, what="wait for the next change")
            if not self._items and self._end is not None:
                raise self._end
            return self._items.popleft()

    def _is_readable(self) -> bool:
        return bool(self._items) or self._end is not None

    @contextmanager
    def handing_over(self) -> Iterator[None]:
        """Hand the item that was read last to the client inside the block; the client has taken it at its end."""
        with self._changed:
            self._handed = self._added - len(self._items)
        try:
            yield
        finally:
            with self._changed:
                self._taken, self._handed = self._handed, 0
                self._pass_marks()

    @property
    def handed(self) -> int:
        """Number of the item that the client is about to take, 0 for none."""
        return self._handed

    def mark(self) -> threading.Event:
        """Return an event that is set once the client has taken everything added so far, or nothing will be taken."""
        with self._changed:
            mark = _Mark(self._added)
            self._marks.append(mark)
            self._pass_marks()
            return mark.passed

    def put(self, item: T) -> bool:
        """Add an item; False when there is no room, which ends this subscription."""
        with self._changed:
            if self._end is None and len(self._items) >= self._capacity:
                self._drop(f"it fell {self._capacity} changes behind")
            elif self._end is None:
                self._items.append(item)
                self._added += 1
            self._changed.notify_all()
            return self._end is None

    def end(self, error: ShimError) -> None:
        """End with `error`, which the subscriber gets after the items that are there."""
        with self._changed:
            self._end = error
            self._pass_marks()
            self._changed.notify_all()

    def drop(self, reason: str) -> bool:
        """End a subscription whose client does not keep up; what is there is not read. False if it had ended."""
        with self._changed:
            if self._end is not None:
                return False
            self._drop(reason)
            self._changed.notify_all()
            return True

    def _drop(self, reason: str) -> None:
        self._items.clear()
        self._end = ResourceExhausted(f"the subscriber was dropped: {reason}")
        self._pass_marks()

    def _pass_marks(self) -> None:
        """Set the marks up to the last item that was taken, or all after the end. The lock is held."""
        while self._marks and (self._end is not None or self._marks[0].place <= self._taken):
            self._marks.popleft().passed.set()


class Broadcast(Generic[T]):
    """The source of items. Thread-safe; nothing here blocks."""

    def __init__(self, *, capacity: int) -> None:
        """Set `capacity`, how many items a subscriber may fall behind."""
        self._capacity = capacity
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription[T]] = set()
        self._judging = threading.Lock()

    def subscribe(self, first: Iterable[T] = ()) -> Subscription[T]:
        """Open a subscription to `first` and all that is published from now on; use it as a context manager.

        A subscriber for whom `first` alone is too much is dropped as well.
        """
        subscription = Subscription(self, capacity=self._capacity)
        with self._lock:
            if all(subscription.put(item) for item in first):
                self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription[T]) -> None:
        """End a subscription. Idempotent."""
        with self._lock:
            self._subscriptions.discard(subscription)
        subscription.drop("its client has gone")

    def publish(self, item: T) -> int:
        """Add `item` for every subscriber; they read items in the order of the calls. Return how many were dropped."""
        with self._lock:
            full = [subscription for subscription in self._subscriptions if not subscription.put(item)]
            self._subscriptions.difference_update(full)
        return len(full)

    def wait_taken(self) -> int:
        """Wait until all clients have taken what has been published so far. Return how many were dropped.

        One that has an item and does not take it within 100 ms is dropped, and so is one that needs more than 2 s for
        what came before. Neither counts time in which this thread could not run. The wait ends with the current scope.
        """
        with self._lock:
            waiting = {subscription: subscription.mark() for subscription in self._subscriptions}
        late = _wait_passed(waiting, judging=self._judging)
        with self._lock:
            self._subscriptions.difference_update(late)
        return len(late)

    def end(self, error: ShimError) -> None:
        """End every present subscription with `error`; later ones are not affected."""
        with self._lock:
            ended, self._subscriptions = self._subscriptions, set()
        for subscription in ended:
            subscription.end(error)

    def __len__(self) -> int:
        with self._lock:
            return len(self._subscriptions)


def _wait_passed(marks: dict[Subscription[T], threading.Event], *, judging: threading.Lock) -> list[Subscription[T]]:
    """Wait until all marks are passed or the current scope ends. Return the subscriptions that were dropped.

    Of several threads only the one with `judging` waits shortly, and drops who is idle: hundreds that did would take
    the processor from those they wait for.
    """
    scope, late, left = deadline.current(), list[Subscription[T]](), _TICKS
    while (waiting := _not_passed(marks)) and not scope.cancelled and not scope.expired:
        if left <= 0:
            late += [each for each in waiting if each.drop(f"it needed more than {_TICK * _TICKS:g} s for its changes")]
        elif judging.acquire(blocking=False):
            try:
                late += _drop_idle(waiting)
            finally:
                judging.release()
        else:
            _wait_first(waiting, _TICK * _TICKS_IDLE)
        left -= _TICKS_IDLE
    return late


def _drop_idle(marks: dict[Subscription[T], threading.Event]) -> list[Subscription[T]]:
    """Wait for the marks for a while, and drop the subscriptions whose clients have had one item all along."""
    _wait_first(marks, _TICK)  # what has just been published is not in anybody's hands before a thread has run
    at_first = {subscription: subscription.handed for subscription in marks}
    for _ in range(_TICKS_IDLE):
        while (waiting := _not_passed(marks)) and _wait_first(waiting, _TICK):
            pass
    reason = f"its client has not taken a change within {_TICK * _TICKS_IDLE * 1000:g} ms"
    return [each for each in waiting if at_first[each] and each.handed == at_first[each] and each.drop(reason)]


def _not_passed(marks: dict[Subscription[T], threading.Event]) -> dict[Subscription[T], threading.Event]:
    return {subscription: passed for subscription, passed in marks.items() if not passed.is_set()}


def _wait_first(marks: dict[Subscription[T], threading.Event], seconds: float) -> bool:
    """Wait for one of the marks; False when `seconds` are over first. The others move on."""
    return next(iter(marks.values())).wait(seconds)
