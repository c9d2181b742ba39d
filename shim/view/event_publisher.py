"""What subscribers are told of the changes of the view, and when.

Guarded by the lock of the view, which must be held: so all hear the same order.
"""

import time
from dataclasses import replace

from shim.base.broadcast import Broadcast, Subscription
from shim.domain.errors import ShimError
from shim.domain.names import sandbox_name
from shim.view import changes
from shim.view.records import Change, Record, SandboxRecord


class EventPublisher:
    """Publishes the steps between records; those of a sandbox that is being made wait until it is made."""

    def __init__(self, *, capacity: int) -> None:
        """`capacity` is how many changes a subscriber may fall behind."""
        self._capacity = capacity
        self._broadcast = Broadcast[Change](capacity=capacity)
        self._missed: list[Change] | None = None
        """What was told since all subscriptions were ended, and one more than a subscriber can take at most."""
        self._held: dict[str, list[Change]] = {}

    def subscribe(self) -> Subscription[Change]:
        """Every change from now on, and after `lose` also those since then; as a context manager."""
        return self._broadcast.subscribe(self._missed or ())

    def subscribers(self) -> int:
        """How many there are."""
        return len(self._broadcast)

    def wait_taken(self) -> int:
        """See `Broadcast.wait_taken`; the lock of the view must not be held."""
        return self._broadcast.wait_taken()

    def lose(self, error: ShimError) -> None:
        """End every subscription with `error`, and keep what is told from now on for those who come before `found`."""
        self._missed = []
        self._broadcast.end(error)

    def found(self) -> None:
        """Keep nothing any more: who comes from now on has the present state to go by."""
        self._missed = None

    def tell(self, old: Record | None, new: Record | None) -> None:
        """Tell the steps from one record of a container to the next; None stands for one that is not there."""
        now = time.time_ns()
        shown = new or (old and changes.removed(old, at=now))
        if shown is None:
            return
        held = self._held.get(sandbox_name(shown.config.metadata)) if isinstance(shown, SandboxRecord) else None
        for kind in changes.steps(old, new):
            change = Change(kind=kind, record=shown, at=now)
            if held is None:
                self._publish(change)
            else:
                held.append(change)

    def hold(self, name: str) -> None:
        """Keep back what happens to the sandbox of this name (`shim.domain.names.sandbox_name`) until `release`."""
        self._held[name] = []

    def release(self, name: str) -> None:
        """Tell what was kept back, in its order, as of now: it must not seem older than what was told before."""
        for change in self._held.pop(name):
            self._publish(replace(change, at=time.time_ns()))

    def _publish(self, change: Change) -> None:
        if self._missed is not None and len(self._missed) <= self._capacity:
            self._missed.append(change)
        self._broadcast.publish(change)
