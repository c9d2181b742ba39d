"""Admission of RPCs: a limited number of each kind, and only reads and streams of events while the server drains.

A server that drains is about to stop. It still answers reads, so that the node stays ready. RPCs that must complete go
on, all others under way are cancelled, and no RPC that changes something starts. Streams of events end only with the
socket: a kubelet subscribes again at once, and after five refusals never again.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from shim.base.deadline import Scope
from shim.cri.rpcs import LIMITS, RPCS, Kind, Rpc
from shim.domain.errors import Cancelled, ResourceExhausted, Unavailable

_UNTIL_STOP = frozenset({Kind.READ, Kind.IMAGE, Kind.WATCH})
"""Kinds that are served until the server stops."""

_STOPPING = "the server is stopping, the call can be repeated at its successor"


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """One RPC under way."""

    name: str
    rpc: Rpc
    scope: Scope
    began: float = field(default_factory=time.monotonic)


class Admission:
    """The RPCs under way. Thread-safe."""

    def __init__(self, *, limits: Mapping[Kind, int] = LIMITS) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._draining = False
        self._running: dict[Ticket, None] = {}
        self._counts: Counter[Kind] = Counter()

    def enter(self, name: str, scope: Scope) -> Ticket:
        """Admit an RPC; `leave` must follow.

        ResourceExhausted at the limit of its kind, Unavailable while the server drains.
        """
        rpc = RPCS[name]
        limit = self._limits[rpc.kind]
        with self._changed:
            if self._draining and rpc.kind not in _UNTIL_STOP:
                raise Unavailable(_STOPPING)
            if self._counts[rpc.kind] >= limit:
                raise ResourceExhausted(
                    f"{name}: {limit} calls of the kind {rpc.kind.value} are under way, try again later"
                )
            ticket = Ticket(name, rpc, scope)
            self._running[ticket] = None
            self._counts[rpc.kind] += 1
            return ticket

    def leave(self, ticket: Ticket) -> None:
        """Remove an RPC that has ended."""
        with self._changed:
            del self._running[ticket]
            self._counts[ticket.rpc.kind] -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Admit only reads and streams of events, and cancel all RPCs but these and those that must complete."""
        with self._changed:
            self._draining = True
        self._cancel(lambda rpc: rpc.kind not in _UNTIL_STOP and not rpc.completes)

    def cancel_all(self) -> None:
        """Cancel all RPCs under way, as `drain` does."""
        self._cancel(lambda _: True)

    def cause_of(self, failure: Exception) -> Exception:
        """Return why an RPC failed: Unavailable, not Cancelled, for one that the stop of the server cancelled."""
        if self._draining and isinstance(failure, Cancelled):
            return Unavailable(_STOPPING)
        return failure

    def names(self) -> list[str]:
        """Return the names of the RPCs under way, sorted."""
        with self._changed:
            return sorted(ticket.name for ticket in self._running)

    def rows(self) -> list[dict[str, object]]:
        """Return how many RPCs of each name are under way, and for how long the oldest is; the oldest first."""
        with self._changed:
            running = list(self._running)
        oldest: dict[str, float] = {}
        for ticket in running:
            oldest[ticket.name] = min(ticket.began, oldest.get(ticket.name, ticket.began))
        counts, now = Counter(ticket.name for ticket in running), time.monotonic()
        return [
            {"rpc": name, "under_way": counts[name], "oldest_seconds": round(now - began, 1)}
            for name, began in sorted(oldest.items(), key=lambda each: each[1])
        ]

    def wait_completed(self, seconds: float) -> bool:
        """Wait until no RPC is under way that must complete; False when `seconds` are over first."""
        return self._wait_none(lambda rpc: rpc.completes, seconds)

    def wait_changes_ended(self, seconds: float) -> bool:
        """Wait until only reads and streams of events are under way; False when `seconds` are over first."""
        return self._wait_none(lambda rpc: rpc.kind not in _UNTIL_STOP, seconds)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no RPC is under way; False when `seconds` are over first."""
        return self._wait_none(lambda _: True, seconds)

    def _wait_none(self, concerned: Callable[[Rpc], bool], seconds: float) -> bool:
        def none_left() -> bool:
            return not any(concerned(ticket.rpc) for ticket in self._running)

        with self._changed:
            return self._changed.wait_for(none_left, seconds)

    def _cancel(self, concerned: Callable[[Rpc], bool]) -> None:
        with self._changed:
            scopes = [ticket.scope for ticket in self._running if concerned(ticket.rpc)]
        for scope in scopes:  # outside the lock, which the woken threads may take
            scope.cancel()
