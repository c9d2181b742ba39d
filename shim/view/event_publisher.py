"""Publishes the changes of the view to subscribers.

Callers hold the lock of the view, so that all subscribers get the same order.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

from shim.base.broadcast import Broadcast, Subscription
from shim.domain.errors import ShimError
from shim.view import changes
from shim.view.records import Change, Key, Record, key_of

KEEP_SECONDS = 30.0
"""How long changes are kept after a subscription was ended or dropped. Clients list and subscribe again at once."""


class EventPublisher:
    """Publishes the changes between records, and defers changes of objects that are being set up.

    A client whose stream has ended lists and then subscribes again. The changes in between are kept for the next
    subscriber, even if the connection to Docker is lost again.
    """

    def __init__(self, *, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Allow a subscriber to fall `capacity` changes behind."""
        self._capacity = capacity
        self._clock = clock
        self._broadcast = Broadcast[Change](capacity=capacity)
        self._followers = Broadcast[Change](capacity=capacity)
        self._missed: list[Change] | None = None
        """Changes since subscribers were ended or dropped, at most `capacity` + 1; None if no subscriber missed any."""
        self._keep_until = math.inf
        """When `_missed` expires, by the clock; never while disconnected."""
        self._deferred: dict[Key, list[Change]] = {}

    def subscribe(self) -> Subscription[Change]:
        """Return a context manager with every change from now on, preceded by missed changes.

        While disconnected, these are the changes since `disconnect`. After a reconnect only the first subscriber gets
        them: all changes since a subscription was ended or dropped.
        """
        self._forget_late()
        subscription = self._broadcast.subscribe(self._missed or ())
        if self._keep_until < math.inf:
            self._missed = None
        return subscription

    def follow(self) -> Subscription[Change]:
        """Subscribe a part of the server. It does not use up a client's missed changes, and no RPC waits for it."""
        self._forget_late()
        return self._followers.subscribe(self._missed or ())

    def subscribers(self) -> int:
        """Return the number of subscribers; `follow` does not count."""
        return len(self._broadcast)

    def wait_taken(self, *, before_drop: Callable[[], None]) -> int:
        """Wait until all subscribers have taken the changes so far; return the number dropped for being slow.

        The caller must not hold the lock of the view. `before_drop` must call `note_dropped` under this lock.
        """
        return self._broadcast.wait_taken(before_drop=before_drop)

    def disconnect(self, error: ShimError) -> None:
        """End every subscription with `error`, and keep changes from now on.

        Changes that no subscriber has fetched since an earlier `disconnect` stay.
        """
        self._forget_late()
        if self._missed is None or len(self._broadcast):
            self._missed = []
        self._keep_until = math.inf
        self._broadcast.end(error)
        self._followers.end(error)

    def reconnect(self) -> None:
        """Keep the changes since `disconnect` for KEEP_SECONDS if no subscriber has fetched them."""
        if len(self._broadcast) or len(self._missed or ()) > self._capacity:
            self._missed = None
        self._keep_until = self._clock() + KEEP_SECONDS

    def note_dropped(self) -> None:
        """Keep changes from now on for the client of a subscriber that was dropped, or is about to be."""
        self._forget_late()
        if self._missed is None:
            self._missed, self._keep_until = [], self._clock() + KEEP_SECONDS

    def publish(self, old: Record | None, new: Record | None) -> None:
        """Publish the changes from one record of a container to the next; None stands for no container."""
        now = time.time_ns()
        record = new or (old and changes.removed(old, at=now))
        if record is None:
            return
        deferred = self._deferred.get(key_of(record)) if self._deferred else None
        for kind in changes.steps(old, new):
            change = Change(kind=kind, record=record, at=now)
            if deferred is None:
                self._send(change)
            else:
                deferred.append(change)

    def defer(self, key: Key) -> None:
        """Defer the changes of the sandbox or container with this key until `flush`."""
        self._deferred[key] = []

    def flush(self, key: Key) -> None:
        """Publish the deferred changes in order, with the current time, because times must not decrease."""
        for change in self._deferred.pop(key):
            self._send(replace(change, at=time.time_ns()))

    def _forget_late(self) -> None:
        if self._clock() > self._keep_until:
            self._missed = None

    def _send(self, change: Change) -> None:
        self._forget_late()
        if self._missed is not None and len(self._missed) <= self._capacity:
            self._missed.append(change)
        self._followers.publish(change)
        if self._broadcast.publish(change):
            self.note_dropped()
