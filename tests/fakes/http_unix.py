"""A scripted HTTP server on a unix socket: it sends the bytes of an Engine.

Each reply is a list of steps that run when its request arrives: bytes are sent unchanged, an Event is waited
for, a function is called with the socket, HANG waits until the client closes, and CLOSE closes the connection.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

SECONDS = 10
"""Bound on every wait, so that a wrong test ends."""


@dataclass(frozen=True)
class Order:
    """A step that is not bytes."""

    name: str


CLOSE: Final = Order("close")
HANG: Final = Order("hang")

Step = bytes | threading.Event | Order | Callable[[socket.socket], object]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of a client."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    connection: int
    """Number of the connection."""

    @property
    def line(self) -> str:
        """Method and path, without the query."""
        return f"{self.method} {self.target.partition('?')[0]}"


def response(status: int, body: object = None, *, headers: Sequence[str] = ()) -> bytes:
    """Return a response; a body other than bytes becomes JSON."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Text", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def chunked(status: int = 200) -> bytes:
    """Return the head of a response with a chunked body."""
    return f"HTTP/1.1 {status} Text\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """Return a chunk; an empty chunk ends the body."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


class ScriptedServer:
    """See the module. `GET /version` returns `api_version`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.api_version = "1.51"
        self.min_api_version = "1.24"
        self.requests: list[Request] = []
        self._scripts: dict[str, list[Sequence[Step]]] = {}
        self._changed = threading.Condition()
        self._hung_up = 0
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    def on(self, line: str, *steps: Step) -> None:
        """Set a reply to `METHOD /path`. Several replies to a line are used in turn, the last for ever."""
        self._scripts.setdefault(line, []).append(steps)

    def wait_requested(self, line: str, times: int = 1) -> None:
        """Wait until the request has arrived `times` times."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.times(line) >= times, SECONDS), f"{line} did not come"

    def wait_hung_up(self) -> None:
        """Wait until a client has closed its connection during a HANG."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._hung_up > 0, SECONDS), "the client did not hang up"

    def times(self, line: str) -> int:
        return sum(request.line == line for request in self.requests)

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """Stop like a daemon: remove the socket, end all connections."""
        if self._listener is None:
            return
        self.path.unlink()
        _shut(self._listener)
        self._threads[0].join(SECONDS)  # it may accept another connection, which has to end too
        for connection in self._connections:
            _shut(connection)
        for thread in self._threads:
            thread.join(SECONDS)
        for end in [self._listener, *self._connections]:
            end.close()
        self._listener, self._connections, self._threads = None, [], []

    def restart(self, *, api_version: str) -> None:
        """Start again as another daemon."""
        self.stop()
        self.api_version = api_version
        self.start()

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._spawn(self._serve, connection, len(self._connections))

    def _serve(self, connection: socket.socket, number: int) -> None:
        reader = connection.makefile("rb")
        with reader:
            while (request := _read_request(reader, number)) is not None:
                with self._changed:
                    self.requests.append(request)
                    self._changed.notify_all()
                try:
                    go_on = all(self._play(step, connection) for step in self._steps(request))
                except OSError:  # many tests let the client disconnect
                    return
                if not go_on:
                    _shut(connection)
                    return

    def _steps(self, request: Request) -> Sequence[Step]:
        if request.line == "GET /version" and request.line not in self._scripts:
            versions = {"Version": "x", "ApiVersion": self.api_version, "MinAPIVersion": self.min_api_version}
            return [response(200, versions)]
        scripts = self._scripts.get(request.line)
        if not scripts:
            return [response(404, {"message": "page not found"})]
        return scripts.pop(0) if len(scripts) > 1 else scripts[0]

    def _play(self, step: Step, connection: socket.socket) -> bool:
        if isinstance(step, bytes):
            connection.sendall(step)
        elif isinstance(step, threading.Event):
            step.wait(SECONDS)
        elif callable(step):
            step(connection)
        elif step == HANG:
            connection.settimeout(SECONDS)
            while connection.recv(4096):
                pass
            with self._changed:
                self._hung_up += 1
                self._changed.notify_all()
        return step not in (CLOSE, HANG)


def _read_request(reader: BufferedReader, number: int) -> Request | None:
    try:
        first = reader.readline()
    except OSError:
        return None
    if not first:
        return None
    method, target, _ = first.decode().split(" ")
    headers = {}
    while line := reader.readline().strip().decode():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = reader.read(int(headers.get("content-length", "0")))
    return Request(method=method, target=target, headers=headers, body=body, connection=number)


@contextmanager
def serving(path: Path) -> Iterator[ScriptedServer]:
    """Run a server at `path` for the block."""
    server = ScriptedServer(path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # the other side closed first
        return
