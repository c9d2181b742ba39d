"""Admission of RPCs: limits the RPCs of each kind, and admits only reads and event streams while the server drains.

A server drains before it stops. It still answers reads, so that the node stays ready, and lets RPCs that must complete
finish. It cancels all other RPCs and admits no new RPC that changes something. Event streams stay open until the socket
closes: a kubelet whose stream ends subscribes again at once, and gives up for good after five refusals.
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
    """An RPC in progress."""

    name: str
    rpc: Rpc
    scope: Scope
    began: float = field(default_factory=time.monotonic)


class Admission:
    """The RPCs in progress. Thread-safe."""

    def __init__(self, *, limits: Mapping[Kind, int] = LIMITS) -> None:
        self._limits = limits
        self._changed = threading.Condition()
        self._draining = False
        self._running: dict[Ticket, None] = {}
        self._counts: Counter[Kind] = Counter()

    def enter(self, name: str, scope: Scope) -> Ticket:
        """Admit an RPC; the caller must call `leave` afterwards.

        Raise ResourceExhausted at the limit of its kind, Unavailable while the server drains.
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
        """Record that an RPC has ended."""
        with self._changed:
            del self._running[ticket]
            self._counts[ticket.rpc.kind] -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Admit only reads and event streams from now on, and cancel all other RPCs except those that must complete."""
        with self._changed:
            self._draining = True
        self._cancel(lambda rpc: rpc.kind not in _UNTIL_STOP and not rpc.must_complete)

    def cancel_all(self) -> None:
        """Cancel all RPCs in progress."""
        self._cancel(lambda _: True)

    def cause_of(self, failure: Exception) -> Exception:
        """Return the error to answer: Unavailable, not Cancelled, if the stop of the server cancelled the RPC."""
        if self._draining and isinstance(failure, Cancelled):
            return Unavailable(_STOPPING)
        return failure

    def names(self) -> list[str]:
        """Return the sorted names of the RPCs in progress."""
        with self._changed:
            return sorted(ticket.name for ticket in self._running)

    def rows(self) -> list[dict[str, object]]:
        """Return count and age of the oldest RPC for each name in progress, oldest first."""
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
        """Wait until all RPCs that must complete have ended; return False after `seconds`."""
        return self._wait_none(lambda rpc: rpc.must_complete, seconds)

    def wait_changes_ended(self, seconds: float) -> bool:
        """Wait until only reads and event streams are left; return False after `seconds`."""
        return self._wait_none(lambda rpc: rpc.kind not in _UNTIL_STOP, seconds)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no RPC is in progress; return False after `seconds`."""
        return self._wait_none(lambda _: True, seconds)

    def _wait_none(self, concerned: Callable[[Rpc], bool], seconds: float) -> bool:
        def none_left() -> bool:
            return not any(concerned(ticket.rpc) for ticket in self._running)

        with self._changed:
            return self._changed.wait_for(none_left, seconds)

    def _cancel(self, concerned: Callable[[Rpc], bool]) -> None:
        with self._changed:
            scopes = [ticket.scope for ticket in self._running if concerned(ticket.rpc)]
        for scope in scopes:  # outside the lock: the woken threads take it
            scope.cancel()
