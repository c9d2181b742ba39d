"""Clients of the streaming server, with real sockets and protocols."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage

from shim.streaming import spdy
from shim.streaming.pipe import Pipe
from shim.streaming.session import Session
from shim.streaming.tokens import Kind, RemoteTask
from shim.streaming.wire import Wire
from tests.streaming.spdy.client import ClientConnection, Event, PingAcked, StreamReplied

SECONDS = 20.0


def task(**changes: object) -> RemoteTask:
    """Return an exec task with stdout and stderr."""
    values: dict[str, object] = {
        "kind": Kind.EXEC,
        "container_id": "c",
        "tty": False,
        "stdin": False,
        "stdout": True,
        "stderr": True,
    }
    return RemoteTask(**(values | changes))  # type: ignore[arg-type]


@contextmanager
def session_of(wire: Wire, *, idle_timeout: float = 0, early: bytes = b"") -> Iterator[tuple[Session, socket.socket]]:
    """Run a session, and yield it with the client's socket."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(SECONDS)
    session = Session(Pipe(ours), wire, idle_timeout=idle_timeout, early=early)
    loop = threading.Thread(target=session.run)
    loop.start()
    try:
        yield session, theirs
    finally:
        theirs.close()
        session.end("the test is over")
        loop.join(SECONDS)
        assert not loop.is_alive()


def seconds_of_trickle(connected: socket.socket) -> float:
    """Send a byte from time to time until the peer stops reading; return the seconds until then."""
    began = time.monotonic()
    with suppress(OSError):
        while time.monotonic() - began < SECONDS:
            connected.sendall(b"G")
            time.sleep(0.02)  # the pace of the trickle
    return time.monotonic() - began


@dataclass
class SpdyClient:
    """A SPDY client that sends the same bytes as kubectl."""

    socket: socket.socket
    connection: ClientConnection = field(default_factory=ClientConnection)
    received: dict[int, bytearray] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    reset: set[int] = field(default_factory=set)
    pongs: int = 0
    replied: set[int] = field(default_factory=set)
    over: bool = False

    def open(self, **headers: str) -> int:
        made = self.connection.open_stream(headers.items())
        self.flush()
        return made

    def send(self, stream: int, data: bytes = b"", *, fin: bool = False) -> None:
        while len(data) > self.connection.send_window(stream):
            self.read_some()
        self.connection.send_data(stream, data, fin=fin)
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(self.connection.data_to_send())

    def read_some(self) -> None:
        data = self.socket.recv(1 << 16)
        events = self.connection.receive_data(data) if data else self.connection.receive_eof()
        self.over = self.over or not data
        for event in events:
            self._take(event)
        if not self.over:
            # The server may have closed the connection after its last bytes, which are still to be read.
            with suppress(BrokenPipeError):
                self.flush()

    def _take(self, event: Event) -> None:
        match event:
            case spdy.DataReceived():
                self.received.setdefault(event.stream_id, bytearray()).extend(event.data)
                self.connection.acknowledge(event.stream_id, len(event.data))
            case StreamReplied():
                self.replied.add(event.stream_id)
            case spdy.StreamHalfClosed():
                self.ended.add(event.stream_id)
            case spdy.StreamReset():
                self.reset.add(event.stream_id)
            case PingAcked():
                self.pongs += 1

    def ping(self) -> None:
        """Send a ping and wait for the answer: then the server has processed all earlier bytes."""
        self.connection.ping()
        self.flush()
        before = self.pongs
        while self.pongs == before:
            self.read_some()

    def read_until_ended(self, *streams: int) -> None:
        while not set(streams) <= self.ended | self.reset and not self.over:
            self.read_some()

    def read_to_end(self) -> None:
        while not self.over:
            self.read_some()


@dataclass
class WebSocketClient:
    """A WebSocket client after the handshake."""

    socket: socket.socket
    connection: Connection = field(default_factory=lambda: Connection(ConnectionType.CLIENT))
    messages: list[bytes | str] = field(default_factory=list)
    pongs: int = 0
    code: int | None = None
    over: bool = False

    def send(self, data: bytes | str) -> None:
        message = TextMessage(data) if isinstance(data, str) else BytesMessage(data)
        self.socket.sendall(self.connection.send(message))

    def ping(self) -> None:
        self.socket.sendall(self.connection.send(Ping(b"?")))

    def read_some(self) -> None:
        data = self.socket.recv(1 << 16)
        self.over = not data
        if self.over:
            return
        self.connection.receive_data(data)
        for event in self.connection.events():
            match event:
                case BytesMessage():
                    self._put(bytes(event.data))
                case TextMessage():
                    self._put(event.data)
                case Pong():
                    self.pongs += 1
                case CloseConnection():
                    self.code = int(event.code)

    def _put(self, data: bytes | str) -> None:
        self.messages.append(data)

    def read_messages(self, count: int) -> list[bytes | str]:
        while len(self.messages) < count and not self.over and self.code is None:
            self.read_some()
        return self.messages

    def read_to_end(self) -> None:
        while not self.over and self.code is None:
            self.read_some()
