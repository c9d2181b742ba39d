"""Bounds on the connections that any process of the node can open, whether it is a client or not.

On loopback that may be any user of the node, or a pod in the node's network. So connections that have not sent a
complete request have a number of slots, and when these are full the oldest goes, not the newest: a client sends its
request at once, and has left its slot long before it is the oldest.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from shim.base import meter

LOG_SECONDS = 5.0
"""Between two lines about refusals, however many there are."""

FULL = "full"
"""Why a connection was refused: it was the oldest when there was no slot for another one."""

log = structlog.get_logger(__name__)


class Slot:
    """The place of one connection."""

    __slots__ = ("connected",)

    def __init__(self, connected: socket.socket) -> None:
        self.connected = connected


class Slots:
    """Places for a number of connections; a new one takes that of the oldest. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._taken: dict[Slot, None] = {}  # oldest first

    def take(self, connected: socket.socket) -> tuple[Slot, bool]:
        """Return a slot for a connection, and whether another one was cut for it: its thread reads the end."""
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
        """Record that TLS has taken over the connection."""
        with self._lock:
            slot.connected = connected
            if slot not in self._taken:
                _cut(connected)

    def free(self, slot: Slot) -> bool:
        """Release a slot; return False when it was lost before, with its connection. Idempotent."""
        with self._lock:
            if slot not in self._taken:
                return False
            del self._taken[slot]
            return True


def _cut(connected: socket.socket) -> None:
    with suppress(OSError):  # it has ended by itself
        # That of an SSLSocket would change the object under the thread that reads it.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


class Refusals:
    """Counts what a server refuses, for its metric and for a line of the log every few seconds. Thread-safe."""

    def __init__(self, server: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._unlogged = 0
        self._next_line = 0.0

    def note(self, reason: str, *, text: str) -> None:
        """Count one refusal. `reason` is a label, one of few; `text` is for people."""
        meter.report(meter.Kind.REFUSED, self._server, reason, seconds=0.0)
        with self._lock:
            self._unlogged += 1
            now = self._clock()
            if now < self._next_line:
                return
            count, self._unlogged = self._unlogged, 0
            self._next_line = now + LOG_SECONDS
        log.info("refused connections", server=self._server, count=count, last=reason, reason=text)
