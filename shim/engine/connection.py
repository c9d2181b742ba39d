"""One connection to the Engine's socket, whose waits end with a scope and from other threads."""

import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TypeVar

from shim.base.deadline import Scope
from shim.domain.errors import reason_of
from shim.engine import http1
from shim.engine.bounds import Rows, Whole

ApiVersion = tuple[int, int]
T = TypeVar("T")

PIECE = 64 * 1024
"""Most bytes of one read."""

LEFT = 1024 * 1024
"""Bytes that are read of a response that was left, so that its connection can be used again."""

_ROOM_SECONDS = 0.01
"""Between two tries to connect to a listener whose queue is full."""


class ConnectionLost(Exception):
    """There is no connection, or none any more. The text is the cause."""


class TimedOut(Exception):
    """The scope's time is over, and the answer is not there."""


class Connection:
    """A connected socket and the bytes that have arrived on it. One thread asks and reads; any may `abort`."""

    __slots__ = (
        "_body",
        "_buffer",
        "_busy",
        "_closed",
        "_dropped",
        "_is_left",
        "_keep_alive",
        "_lock",
        "_socket",
        "_use",
        "idle_since",
        "version",
    )

    def __init__(self, connected: socket.socket) -> None:
        self.version: ApiVersion = (0, 0)
        """What the daemon at the other end speaks; a daemon that restarts takes its connections with it."""
        self.idle_since = 0.0
        """When its last use ended, by the monotonic clock; kept by the pool."""
        self._socket = connected
        self._buffer = bytearray()
        self._body: http1.Body | None = None
        self._keep_alive = True
        self._is_left = False
        self._dropped = 0
        """Bytes of a response that was left."""
        self._lock = threading.Lock()
        self._use = 0
        self._busy = 0
        """Threads that use the socket right now."""
        self._closed = False

    def ask(
        self, method: str, target: str, *, scope: Scope, headers: Mapping[str, str], body: bytes = b""
    ) -> http1.Head:
        """Send a request and read the head of its response."""
        self._body = None
        self._is_left = False
        self._dropped = 0
        self.send(http1.request_bytes(method, target, headers=headers, body=body), scope=scope)
        try:
            while (head := http1.take_head(self._buffer)) is None:
                if not self._receive(scope):
                    raise ConnectionLost("the engine closed the connection without an answer")
            self._body = http1.body_of(head, method=method)
        except http1.MalformedResponse as cause:
            raise ConnectionLost(str(cause)) from cause
        self._keep_alive = head.keep_alive and head.status != 101
        return head

    def read(self, scope: Scope) -> bytes:
        """Read the next piece of the response body as soon as there is one; empty at its end."""
        body = self._body
        if body is None:
            return b""
        try:
            while not (piece := body.take(self._buffer)) and not body.done:
                if not self._receive(scope):
                    body.end()
        except http1.MalformedResponse as cause:
            raise ConnectionLost(str(cause)) from cause
        return piece

    def read_all(self, scope: Scope, *, into: Whole | Rows) -> bytes:
        """Read the rest of the response body. TooLarge when it is more than `into` takes."""
        while piece := self.read(scope):
            into.take(piece)
        return into.content()

    def read_some(self, scope: Scope, *, most: int) -> bytes:
        """Read the first `most` bytes of the response body; what comes after them is left."""
        found = bytearray()
        while len(found) < most and (piece := self.read(scope)):
            found += piece
        return bytes(found[:most])

    def read_raw(self, scope: Scope, *, most: int = PIECE) -> bytes:
        """Read what comes next on an upgraded connection, first of all what came with the head; empty at its end.

        `most` bytes are taken from the socket, and memory for so many while it waits.
        """
        if self._buffer:
            piece = bytes(self._buffer)
            self._buffer.clear()
            return piece
        return self._received(scope, most=most)

    def send(self, data: bytes | memoryview, *, scope: Scope) -> None:
        """Send all of `data`."""
        self._with_socket(lambda connected: connected.sendall(data), scope=scope)

    def send_eof(self) -> None:
        """Close our direction only: the peer reads end of file and may go on answering."""
        self._with_socket(lambda connected: connected.shutdown(socket.SHUT_WR), scope=Scope())

    def leave(self) -> None:
        """Wait no longer for the rest of the response: `settled` drops it, however much later that is."""
        self._is_left = True

    @property
    def reusable(self) -> bool:
        """Whether the next request can go over it, if it was left once it is `settled`."""
        body = self._body
        return self._keep_alive and body is not None and (self._is_left or (body.done and not self._buffer))

    def settled(self) -> bool:
        """Whether nothing is to come of a response that was left. Does not wait."""
        while self._is_left and self._body is not None:
            try:
                while piece := self._body.take(self._buffer):
                    self._dropped += len(piece)
                if self._dropped > LEFT:
                    self._is_left = self._keep_alive = False
                    return True
                self._is_left = not self._body.done
                if self._is_left and not self._has_input():
                    return False
                if self._is_left and not self._receive(Scope()):
                    self._body.end()
            except (ConnectionLost, http1.MalformedResponse):
                self._is_left = self._keep_alive = False
        return True

    def alive(self) -> bool:
        """Whether the idle connection still stands: it has nothing to read, not even its end."""
        return not self._has_input()

    def _has_input(self) -> bool:
        """Whether there is something to read, be it the end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def begin_use(self) -> int:
        """Give the ticket with which `abort` ends this use, and no later one, of the connection."""
        with self._lock:
            self._use += 1
            return self._use

    def abort(self, use: int) -> None:
        """End every wait on the connection, from any thread, if it still serves `use`."""
        with self._lock:
            if use == self._use:
                self._use += 1
                self._keep_alive = False
                _shut(self._socket)

    def end_use(self) -> None:
        """Make the ticket void."""
        with self._lock:
            self._use += 1

    def close(self) -> None:
        """End every wait on the connection and close it. Idempotent, from any thread."""
        with self._lock:
            self._use += 1
            if self._closed:
                return
            self._closed = True
            _shut(self._socket)
            self._close_if_unused()

    def _receive(self, scope: Scope) -> bool:
        """Wait for bytes and keep them; False at the end of the connection."""
        data = self._received(scope)
        self._buffer += data
        return bool(data)

    def _received(self, scope: Scope, *, most: int = PIECE) -> bytes:
        while True:
            try:
                return self._with_socket(lambda connected: connected.recv(most), scope=scope)
            except TimedOut:
                if scope.expired:  # else it was prolonged during the wait
                    raise

    def _with_socket(self, deed: Callable[[socket.socket], T], *, scope: Scope) -> T:
        """Do something that waits on the socket.

        The descriptor is not closed meanwhile: its number may be another connection's a moment later, and this
        thread would then read the answer of a stranger.
        """
        with self._lock:
            if self._closed:
                raise ConnectionLost("the connection was closed")
            self._busy += 1
        try:
            left = scope.remaining()
            if left is not None and left <= 0:
                raise TimedOut
            # Also where it is the same already: another thread may be about to set it, and it takes two steps.
            self._socket.settimeout(left)
            return deed(self._socket)
        except TimeoutError as cause:
            raise TimedOut from cause
        except OSError as cause:
            raise ConnectionLost(reason_of(cause)) from cause
        finally:
            with self._lock:
                self._busy -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the descriptor once nobody uses it. The lock is held."""
        if self._closed and not self._busy:
            self._socket.close()


def text_from_version(version: ApiVersion) -> str:
    """Write a version as in Docker's URLs, without the `v`."""
    return f"{version[0]}.{version[1]}"


def connect(path: str, *, scope: Scope) -> Connection:
    """Connect to the unix socket at `path`. A cancelled scope ends the wait as well: ConnectionLost."""
    return Connection(connected_socket(path, scope=scope))


def connected_socket(path: str, *, scope: Scope) -> socket.socket:
    """Give the socket of `connect` as it is."""
    try:
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as cause:  # no descriptor is free
        raise ConnectionLost(f"connect to {path}: {reason_of(cause)}") from cause
    try:
        _wait_connected(connecting, path, scope=scope)
    except OSError as cause:
        connecting.close()
        raise ConnectionLost(f"connect to {path}: {reason_of(cause)}") from cause
    except (ConnectionLost, TimedOut):
        connecting.close()
        raise
    return connecting


def _wait_connected(connecting: socket.socket, path: str, *, scope: Scope) -> None:
    # The kernel connects at once, or not at all where too many others wait to be accepted. It tells nobody when there
    # is room again, unless in a system call that no cancellation would end.
    connecting.setblocking(False)
    cancelled = threading.Event()
    with scope.on_cancel(cancelled.set):
        while not scope.expired:
            try:
                return connecting.connect(path)
            except BlockingIOError as cause:
                if cancelled.wait(_ROOM_SECONDS):
                    raise ConnectionLost(f"connect to {path}: the request was cancelled") from cause
    raise TimedOut


def _shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer has closed already: nothing waits on it any more
        return
