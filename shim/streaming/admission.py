"""Limits the open sessions, and the connections without a session.

Users of the node, and pods in the node's network, can open connections. Connections without a complete request share a
number of slots. When all slots are taken, the oldest connection is closed, not the newest: a real client sends its
request at once, and frees its slot long before it is the oldest.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import structlog

from shim.base import meter
from shim.streaming.tokens import Task

LOG_SECONDS = 5.0
"""Interval between log lines about refusals."""

FULL = "full"
"""Reason of a refusal: the connection was the oldest when all slots were taken."""

log = structlog.get_logger(__name__)


class Admission:
    """Counts the open sessions, in total and per container or pod. Thread-safe.

    Each session takes threads, descriptors and up to 2 MiB of memory.
    """

    def __init__(self, *, most: int, most_each: int) -> None:
        self._most = most
        self._most_each = most_each
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def enter(self, task: Task) -> str:
        """Count a session. Return the reason if it is refused; "" if it is admitted."""
        with self._lock:
            if self._open.total() >= self._most:
                return f"{self._most} streaming sessions are open, the most that streaming_max_sessions allows"
            if self._open[task.target] >= self._most_each:
                return (
                    f"{self._most_each} streaming sessions of {task.target} are open, "
                    "the most that streaming_max_sessions_per_container allows"
                )
            self._open[task.target] += 1
            return ""

    def leave(self, task: Task) -> None:
        """Record that an admitted session has ended."""
        with self._lock:
            self._open[task.target] -= 1
            if not self._open[task.target]:
                del self._open[task.target]


class Slot:
    """The slot of a connection."""

    __slots__ = ("connected",)

    def __init__(self, connected: socket.socket) -> None:
        self.connected = connected


class Slots:
    """Slots for `most` connections; if all are taken, a new connection takes the slot of the oldest. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: dict[Slot, None] = {}  # oldest first

    def take(self, connected: socket.socket) -> tuple[Slot, bool]:
        """Return a slot for a connection, and whether the oldest connection was shut down for it."""
        slot = Slot(connected)
        with self._lock:
            full = len(self._taken) >= self._most
            if full:
                oldest = next(iter(self._taken))
                del self._taken[oldest]
                _cut(oldest.connected)
            self._taken[slot] = None
        return slot, full

    def secured(self, slot: Slot, connected: socket.socket) -> None:
        """Record the TLS socket of a connection."""
        with self._lock:
            slot.connected = connected
            if slot not in self._taken:
                _cut(connected)

    def free(self, slot: Slot) -> bool:
        """Release a slot; return False if its connection was shut down for a new connection. Idempotent."""
        with self._lock:
            if slot not in self._taken:
                return False
            del self._taken[slot]
            return True


def _cut(connected: socket.socket) -> None:
    with suppress(OSError):  # the peer has closed it
        # Not SSLSocket.shutdown, which would change the object while another thread reads from it.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class Refusals:
    """Counts refused connections for a metric, and logs them every LOG_SECONDS. Thread-safe."""

    def __init__(self, server: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._unlogged = 0
        self._next_line = 0.0

    def note(self, reason: str, *, text: str) -> None:
        """Count a refusal. `reason` is a label of the metric; `text` is logged."""
        meter.report(meter.Kind.REFUSED, self._server, reason, seconds=0.0)
        with self._lock:
            self._unlogged += 1
            now = self._clock()
            if now < self._next_line:
                return
            count, self._unlogged = self._unlogged, 0
            self._next_line = now + LOG_SECONDS
        log.info("refused connections", server=self._server, count=count, last=reason, reason=text)
