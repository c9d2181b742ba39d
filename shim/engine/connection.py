"""A connection to the Engine's socket. A scope, or another thread, can end its waits."""

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

READ_BYTES = 64 * 1024
"""Bytes of a read."""

MAX_DRAIN = 1024 * 1024
"""Bytes read from an abandoned response, so that its connection can be used again."""

_CONNECT_RETRY_SECONDS = 0.01
"""Between two attempts to connect to a listener whose queue is full."""


class ConnectionLost(Exception):
    """The connection failed or could not be opened. The text is the cause."""


class TimedOut(Exception):
    """The scope expired before the answer came."""


class DockerConnection:
    """A connected socket and its unread bytes. One thread sends and reads; any thread may `abort`."""

    __slots__ = (
        "_body",
        "_buffer",
        "_busy",
        "_closed",
        "_drained",
        "_is_abandoned",
        "_keep_alive",
        "_lock",
        "_socket",
        "_use",
        "idle_since",
        "version",
        "was_asked",
    )

    def __init__(self, connected: socket.socket) -> None:
        self.version: ApiVersion = (0, 0)
        """The API version of the daemon; a restart of the daemon ends its connections."""
        self.idle_since = 0.0
        """When the last use ended, by the monotonic clock; set by the pool."""
        self.was_asked = False
        """Whether its current use has sent a request."""
        self._socket = connected
        self._buffer = bytearray()
        self._body: http1.Body | None = None
        self._keep_alive = True
        self._is_abandoned = False
        self._drained = 0
        """Bytes read from an abandoned response."""
        self._lock = threading.Lock()
        self._use = 0
        self._busy = 0
        """The number of threads that are using the socket."""
        self._closed = False

    def request(
        self, method: str, target: str, *, scope: Scope, headers: Mapping[str, str], body: bytes = b""
    ) -> http1.Head:
        """Send a request and read the head of its response."""
        self._body = None
        self._is_abandoned = False
        self._drained = 0
        self.was_asked = True
        self.send(http1.request_bytes(method, target, headers=headers, body=body), scope=scope)
        try:
            while (head := http1.take_head(self._buffer)) is None:
                if not self._receive(scope):
                    raise ConnectionLost("the Engine closed the connection without an answer")
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
        """Read the rest of the response body. Raise TooLarge beyond the bound of `into`."""
        while piece := self.read(scope):
            into.take(piece)
        return into.content()

    def read_some(self, scope: Scope, *, most: int) -> bytes:
        """Read the first `most` bytes of the response body. The rest stays unread."""
        found = bytearray()
        while len(found) < most and (piece := self.read(scope)):
            found += piece
        return bytes(found[:most])

    def read_raw(self, scope: Scope, *, most: int = READ_BYTES) -> bytes:
        """Read the next bytes of an upgraded connection, first the bytes that came with the head; empty at its end.

        `most` bounds the read from the socket, and the memory of the waiting read.
        """
        if self._buffer:
            piece = bytes(self._buffer)
            self._buffer.clear()
            return piece
        return self._receive_raw(scope, most=most)

    def send(self, data: bytes | memoryview, *, scope: Scope) -> None:
        """Send all of `data`."""
        self._with_socket(lambda connected: connected.sendall(data), scope=scope)

    def send_eof(self) -> None:
        """Close the sending direction: the peer reads end of file and may still send."""
        self._with_socket(lambda connected: connected.shutdown(socket.SHUT_WR), scope=Scope())

    def abandon(self) -> None:
        """Stop reading the response: `drain_abandoned` reads and drops the rest later."""
        self._is_abandoned = True

    @property
    def reusable(self) -> bool:
        """Whether the next request can use it; after `abandon` only once `drain_abandoned` has returned True."""
        body = self._body
        return self._keep_alive and body is not None and (self._is_abandoned or (body.done and not self._buffer))

    def drain_abandoned(self) -> bool:
        """Drop the available bytes of an abandoned response, without waiting. Return whether it is complete."""
        while self._is_abandoned and self._body is not None:
            try:
                while piece := self._body.take(self._buffer):
                    self._drained += len(piece)
                if self._drained > MAX_DRAIN:
                    self._is_abandoned = self._keep_alive = False
                    return True
                self._is_abandoned = not self._body.done
                if self._is_abandoned and not self._has_input():
                    return False
                if self._is_abandoned and not self._receive(Scope()):
                    self._body.end()
            except (ConnectionLost, http1.MalformedResponse):
                self._is_abandoned = self._keep_alive = False
        return True

    def alive(self) -> bool:
        """Return whether the idle connection is still open: nothing can be read, not even end of file."""
        return not self._has_input()

    def _has_input(self) -> bool:
        """Return whether a read would not block, which includes end of file."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def begin_use(self) -> int:
        """Return a ticket, so that `abort` ends only this use of the connection."""
        self.was_asked = False
        with self._lock:
            self._use += 1
            return self._use

    def abort(self, use: int) -> None:
        """End every wait on the connection, from any thread, if `use` is its current use."""
        with self._lock:
            if use == self._use:
                self._use += 1
                self._keep_alive = False
                _shut(self._socket)

    def end_use(self) -> None:
        """Invalidate the ticket of `begin_use`."""
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
        """Wait for bytes and buffer them; return False at the end of the connection."""
        data = self._receive_raw(scope)
        self._buffer += data
        return bool(data)

    def _receive_raw(self, scope: Scope, *, most: int = READ_BYTES) -> bytes:
        while True:
            try:
                return self._with_socket(lambda connected: connected.recv(most), scope=scope)
            except TimedOut:
                if scope.expired:  # otherwise the scope was extended during the wait
                    raise

    def _with_socket(self, operation: Callable[[socket.socket], T], *, scope: Scope) -> T:
        """Run an operation that may wait on the socket.

        The descriptor is not closed meanwhile. Otherwise another connection could reuse its number, and this thread
        would read the answer of that connection.
        """
        with self._lock:
            if self._closed:
                raise ConnectionLost("the connection was closed")
            self._busy += 1
        try:
            left = scope.remaining()
            if left is not None and left <= 0:
                raise TimedOut
            # Set it even if unchanged: another thread may be setting it, which takes two steps.
            self._socket.settimeout(left)
            return operation(self._socket)
        except TimeoutError as cause:
            raise TimedOut from cause
        except OSError as cause:
            raise ConnectionLost(reason_of(cause)) from cause
        finally:
            with self._lock:
                self._busy -= 1
                self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the descriptor once no thread uses it. The caller holds the lock."""
        if self._closed and not self._busy:
            self._socket.close()


def text_from_version(version: ApiVersion) -> str:
    """Return a version as Docker's URLs have it, without the `v`."""
    return f"{version[0]}.{version[1]}"


def connect(path: str, *, scope: Scope) -> DockerConnection:
    """Connect to the unix socket at `path`. Raise ConnectionLost also if the scope is cancelled, or TimedOut."""
    return DockerConnection(connected_socket(path, scope=scope))


def connected_socket(path: str, *, scope: Scope) -> socket.socket:
    """Return a socket connected to `path`; errors as for `connect`."""
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
    # Poll: the kernel connects at once, or refuses while the accept queue of the listener is full. It reports room in
    # the queue only to a blocking connect, which cannot be cancelled.
    connecting.setblocking(False)
    cancelled = threading.Event()
    with scope.on_cancel(cancelled.set):
        while not scope.expired:
            try:
                return connecting.connect(path)
            except BlockingIOError as cause:
                if cancelled.wait(_CONNECT_RETRY_SECONDS):
                    raise ConnectionLost(f"connect to {path}: the request was cancelled") from cause
    raise TimedOut


def _shut(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:  # the peer has closed the connection, so nothing waits on it
        return
