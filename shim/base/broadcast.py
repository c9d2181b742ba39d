"""One publisher, many subscribers: no subscriber can delay the publisher or another subscriber.

Each subscriber has a queue of bounded length. A subscriber whose queue is full is dropped with an error: if items were
skipped silently, it would act on outdated state.

`Broadcast.wait_taken` waits until all clients have received the published items. It measures a client's delay in short
waits (ticks), not by a clock: if the machine or the interpreter stalls, the current tick takes longer but still counts
once, so a stall does not drop a healthy client.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Self, TypeVar

from shim.base import deadline
from shim.domain.errors import ResourceExhausted, ShimError

T = TypeVar("T")

_TICK = 0.01
"""Seconds."""
_TICKS_IDLE = 10
"""Ticks that a client may take to accept an item it has been handed: 100 ms."""
_TICKS = 200
"""Ticks that a client may take to accept all items published before the wait: 2 s."""


@dataclass(frozen=True, slots=True, eq=False)
class _Mark:
    """A position in the queue of a subscriber, and an event that is set once the client has passed it."""

    place: int
    """Number of items that were added before it."""
    passed: threading.Event = field(default_factory=threading.Event)


class Subscription(Generic[T]):
    """The queue of one subscriber. A context manager; leaving it ends the subscription."""

    def __init__(self, source: "Broadcast[T]", *, capacity: int) -> None:
        self._source = source
        self._capacity = capacity
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._end: ShimError | None = None
        self._added = self._taken = 0
        self._handed = 0
        """Number of the item that is being handed to the client; 0 for none."""
        self._marks: deque[_Mark] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.unsubscribe(self)

    @property
    def has_ended(self) -> bool:
        """Return whether the subscription has ended: no item will be added."""
        return self._end is not None

    def wait_next(self) -> T:
        """Wait for the next item and return it.

        Raise the publisher's final error after the last item, ResourceExhausted if this subscriber was dropped, and
        Cancelled or DeadlineExceeded if the current scope ends.
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
        """Mark the item read last as being handed to the client; at the end of the block the client has it."""
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
        """Return the number of the item that is being handed to the client; 0 for none."""
        return self._handed

    def mark(self) -> threading.Event:
        """Return an event that is set once the client has all items added so far, or the subscription has ended."""
        with self._changed:
            mark = _Mark(self._added)
            self._marks.append(mark)
            self._pass_marks()
            return mark.passed

    def put(self, item: T) -> bool:
        """Add an item. If the queue is full, drop the subscriber. Return whether the subscription goes on."""
        with self._changed:
            if self._end is None and len(self._items) >= self._capacity:
                self._drop(f"it fell {self._capacity} changes behind")
            elif self._end is None:
                self._items.append(item)
                self._added += 1
            self._changed.notify_all()
            return self._end is None

    def end(self, error: ShimError) -> None:
        """End the subscription; the subscriber gets `error` after the queued items."""
        with self._changed:
            self._end = error
            self._pass_marks()
            self._changed.notify_all()

    def drop(self, reason: str) -> bool:
        """Discard the queued items and end the subscription. Return False if it had ended before."""
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
        """Set the marks that the client has passed, or all marks if the subscription has ended. The lock is held."""
        while self._marks and (self._end is not None or self._marks[0].place <= self._taken):
            self._marks.popleft().passed.set()


class Broadcast(Generic[T]):
    """The publisher of items. Thread-safe; only `wait_taken` blocks."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is the number of items a subscriber may fall behind."""
        self._capacity = capacity
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription[T]] = set()
        self._judging = threading.Lock()

    def subscribe(self, first: Iterable[T] = ()) -> Subscription[T]:
        """Subscribe to `first` and to all items published from now on.

        If `first` alone does not fit in the queue, the subscriber is dropped at once.
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
        """Queue `item` for every subscriber, in the order of the calls. Return how many subscribers were dropped."""
        with self._lock:
            full = [subscription for subscription in self._subscriptions if not subscription.put(item)]
            self._subscriptions.difference_update(full)
        return len(full)

    def wait_taken(self, *, before_drop: Callable[[], None] = lambda: None) -> int:
        """Wait until all clients have the items published so far, or the current scope ends. Return the number dropped.

        Drop a subscriber whose client leaves a delivered item unread for 100 ms, or needs more than 2 s to catch up.
        Time does not count while this thread could not run. `before_drop` is called before each drop: this method may
        wait on for others.
        """
        with self._lock:
            waiting = {subscription: subscription.mark() for subscription in self._subscriptions}

        def drop(subscription: Subscription[T], reason: str) -> bool:
            before_drop()
            return subscription.drop(reason)

        late = _wait_passed(waiting, judging=self._judging, drop=drop)
        with self._lock:
            self._subscriptions.difference_update(late)
        return len(late)

    def end(self, error: ShimError) -> None:
        """End all current subscriptions with `error`. Later subscriptions are not affected."""
        with self._lock:
            ended, self._subscriptions = self._subscriptions, set()
        for subscription in ended:
            subscription.end(error)

    def __len__(self) -> int:
        with self._lock:
            return len(self._subscriptions)


def _wait_passed(
    marks: dict[Subscription[T], threading.Event],
    *,
    judging: threading.Lock,
    drop: Callable[[Subscription[T], str], bool],
) -> list[Subscription[T]]:
    """Wait until all marks are passed or the current scope ends. Return the subscriptions that were dropped.

    Of all waiting threads, only the holder of `judging` wakes up at each tick to drop idle subscribers: hundreds of
    such threads would take the processor from the subscribers they wait for.
    """
    scope, late, left = deadline.current(), list[Subscription[T]](), _TICKS
    while (waiting := _not_passed(marks)) and not scope.cancelled and not scope.expired:
        if left <= 0:
            reason = f"it needed more than {_TICK * _TICKS:g} s for its changes"
            late += [each for each in waiting if drop(each, reason)]
        elif judging.acquire(blocking=False):
            try:
                late += _drop_idle(waiting, drop)
            finally:
                judging.release()
        else:
            _wait_first(waiting, _TICK * _TICKS_IDLE)
        left -= _TICKS_IDLE
    return late


def _drop_idle(
    marks: dict[Subscription[T], threading.Event], drop: Callable[[Subscription[T], str], bool]
) -> list[Subscription[T]]:
    """Wait _TICKS_IDLE ticks; drop the subscriptions whose clients have been taking the same item all that time."""
    _wait_first(marks, _TICK)  # a subscriber's thread must run before it can hand over the new item
    at_first = {subscription: subscription.handed for subscription in marks}
    for _ in range(_TICKS_IDLE):
        while (waiting := _not_passed(marks)) and _wait_first(waiting, _TICK):
            pass
    reason = f"its client has not taken a change within {_TICK * _TICKS_IDLE * 1000:g} ms"
    return [each for each in waiting if at_first[each] and each.handed == at_first[each] and drop(each, reason)]


def _not_passed(marks: dict[Subscription[T], threading.Event]) -> dict[Subscription[T], threading.Event]:
    return {subscription: passed for subscription, passed in marks.items() if not passed.is_set()}


def _wait_first(marks: dict[Subscription[T], threading.Event], seconds: float) -> bool:
    """Wait up to `seconds` for the first mark; return whether it is passed."""
    return next(iter(marks.values())).wait(seconds)
