"""Which changes of the view subscribers get, and when.

Guarded by the lock of the view, which must be held, so that all subscribers get the same order.
"""

import time
from dataclasses import replace

from shim.base.broadcast import Broadcast, Subscription
from shim.domain.errors import ShimError
from shim.domain.names import sandbox_name
from shim.view import changes
from shim.view.records import Change, Record, SandboxRecord


class EventPublisher:
    """Publishes the changes between records; those of a sandbox that is being set up are deferred."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is how many changes a subscriber may fall behind."""
        self._capacity = capacity
        self._broadcast = Broadcast[Change](capacity=capacity)
        self._missed: list[Change] | None = None
        """Changes since the disconnect, at most one more than a subscriber can take; None while connected."""
        self._deferred: dict[str, list[Change]] = {}

    def subscribe(self) -> Subscription[Change]:
        """Return a context manager with every change from now on, after `disconnect` also those since then."""
        return self._broadcast.subscribe(self._missed or ())

    def subscribers(self) -> int:
        """Return the number of subscribers."""
        return len(self._broadcast)

    def wait_taken(self) -> int:
        """Wait until all subscribers have taken the changes so far, as `Broadcast.wait_taken` does.

        The lock of the view must not be held.
        """
        return self._broadcast.wait_taken()

    def disconnect(self, error: ShimError) -> None:
        """End every subscription with `error`, and keep changes from now on for subscribers before `reconnect`."""
        self._missed = []
        self._broadcast.end(error)

    def reconnect(self) -> None:
        """Drop the changes kept since `disconnect`: a subscriber from now on begins with the present state."""
        self._missed = None

    def publish(self, old: Record | None, new: Record | None) -> None:
        """Publish the changes from one record of a container to the next; None if there is no container."""
        now = time.time_ns()
        record = new or (old and changes.removed(old, at=now))
        if record is None:
            return
        deferred = (
            self._deferred.get(sandbox_name(record.config.metadata)) if isinstance(record, SandboxRecord) else None
        )
        for kind in changes.steps(old, new):
            change = Change(kind=kind, record=record, at=now)
            if deferred is None:
                self._send(change)
            else:
                deferred.append(change)

    def defer(self, name: str) -> None:
        """Defer the changes of the sandbox of this name (`shim.domain.names.sandbox_name`) until `flush`."""
        self._deferred[name] = []

    def flush(self, name: str) -> None:
        """Publish the deferred changes in order, with the present time: times must not go back."""
        for change in self._deferred.pop(name):
            self._send(replace(change, at=time.time_ns()))

    def _send(self, change: Change) -> None:
        if self._missed is not None and len(self._missed) <= self._capacity:
            self._missed.append(change)
        self._broadcast.publish(change)
