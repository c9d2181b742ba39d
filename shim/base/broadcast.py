"""One source, many subscribers, none of which can hold up the source or another subscriber.

Each subscriber has a queue of bounded length. One that does not keep up is dropped with an error that says so:
leaving out items in silence would make it believe what is no longer true.
"""

import threading
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Generic, Self, TypeVar

from shim.base import deadline
from shim.domain.errors import ResourceExhausted, ShimError

T = TypeVar("T")


class Subscription(Generic[T]):
    """What one subscriber has still to read. A context manager; leaving it ends the subscription."""

    def __init__(self, source: "Broadcast[T]", *, capacity: int) -> None:
        self._source = source
        self._capacity = capacity
        self._changed = threading.Condition()
        self._items: deque[T] = deque()
        self._end: ShimError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source.unsubscribe(self)

    @property
    def has_ended(self) -> bool:
        """Whether nothing will be added any more."""
        return self._end is not None

    def wait_next(self) -> T:
        """Give the next item, as soon as there is one.

        Raises what the source ended with, once everything before it has been read; ResourceExhausted for a
        subscriber that was dropped; and what ends the current scope.
        """
        scope = deadline.current()
        with scope.on_cancel(self._wake), self._changed:
            while not self._items:
                if self._end is not None:
                    raise self._end
                scope.check("wait for the next change")
                self._changed.wait(scope.remaining())
            return self._items.popleft()

    def put(self, item: T) -> bool:
        """Add an item; False when there is no room, which ends this subscription."""
        with self._changed:
            if len(self._items) >= self._capacity:
                self._items.clear()
                self._end = ResourceExhausted(f"the subscriber was dropped: it fell {self._capacity} changes behind")
            else:
                self._items.append(item)
            self._changed.notify_all()
            return self._end is None

    def end(self, error: ShimError) -> None:
        """Let the subscriber read what is there, and then `error`."""
        with self._changed:
            self._end = error
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Broadcast(Generic[T]):
    """The source. Thread-safe; nothing here blocks."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is how many items a subscriber may fall behind."""
        self._capacity = capacity
        self._lock = threading.Lock()
        self._subscriptions: set[Subscription[T]] = set()

    def subscribe(self, first: Iterable[T] = ()) -> Subscription[T]:
        """Open a subscription to `first` and all that is published from now on; use it as a context manager.

        To whom `first` alone is too much has fallen behind as well.
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

    def publish(self, item: T) -> None:
        """Give `item` to every subscriber; the order of calls is the order they read."""
        with self._lock:
            full = [subscription for subscription in self._subscriptions if not subscription.put(item)]
            self._subscriptions.difference_update(full)

    def end(self, error: ShimError) -> None:
        """End every present subscription with `error`; later ones are not affected."""
        with self._lock:
            ended, self._subscriptions = self._subscriptions, set()
        for subscription in ended:
            subscription.end(error)

    def __len__(self) -> int:
        with self._lock:
            return len(self._subscriptions)
