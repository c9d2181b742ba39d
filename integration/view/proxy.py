"""A proxy of Docker's socket that records requests, lets some hang and damages event streams."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

_HANG_SECONDS = 120.0
"""A hanging call goes on after this many seconds at the latest."""
_PIECE = 64 * 1024
_REFUSAL = (
    b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 26\r\n\r\n"
    b'{"message":"input/output"}'
)

Fault = str
"""Treatment of an event: `pass`, `drop`, `twice`, `late`, `cut` (after it), or `half` of it and then a cut."""

_LATE_SECONDS = 0.15


class DockerProxy:
    """Forwards connections to `path` to the Engine at `upstream`. Thread-safe."""

    def __init__(self, path: Path, *, upstream: Path) -> None:
        self.path = path
        self.url = f"unix://{path}"
        self._upstream = upstream
        self._lock = threading.Lock()
        self._requests: list[str] = []
        self._hanging: list[tuple[re.Pattern[str], threading.Event, threading.Event]] = []
        self._refused: list[re.Pattern[str]] = []
        self._faults: Iterator[Fault] = iter(())
        self._streams: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(512)
        threading.Thread(target=self._serve, name="docker-proxy", daemon=True).start()

    def close(self) -> None:
        """Release hanging calls and accept no further connection; connections end with their clients."""
        with self._lock:
            hanging, self._hanging = self._hanging, []
        for _, _, released in hanging:
            released.set()
        # close() alone does not wake a thread in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink()

    def requests(self) -> list[str]:
        """All requests so far, as method and path without version and query: `GET /containers/json`."""
        with self._lock:
            return list(self._requests)

    @contextmanager
    def hanging(self, pattern: str) -> Iterator[threading.Event]:
        """Let matching requests hang inside the block; yields an event that is set when the first hangs."""
        asked, released = threading.Event(), threading.Event()
        entry = re.compile(pattern), asked, released
        with self._lock:
            self._hanging.append(entry)
        try:
            yield asked
        finally:
            with self._lock, suppress(ValueError):
                self._hanging.remove(entry)
            released.set()

    @contextmanager
    def refusing(self, pattern: str) -> Iterator[None]:
        """Answer matching requests with a server error inside the block."""
        entry = re.compile(pattern)
        with self._lock:
            self._refused.append(entry)
        try:
            yield
        finally:
            with self._lock:
                self._refused.remove(entry)

    def damage(self, faults: Iterator[Fault]) -> None:
        """Apply these faults to the next events, one each; later events pass."""
        with self._lock:
            self._faults = faults

    def cut(self) -> None:
        """Cut every event stream."""
        with self._lock:
            streams = list(self._streams)
        for client in streams:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    # A connection

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), name="docker-proxied", daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError), socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self._upstream))
            with client.makefile("rb") as asked, server.makefile("rb") as answered:
                while self._exchange(client, server, asked=asked, answered=answered):
                    pass

    def _exchange(
        self, client: socket.socket, server: socket.socket, *, asked: BufferedReader, answered: BufferedReader
    ) -> bool:
        """Forward a request and its answer; return False when the connection ends."""
        head = _head(asked)
        request = _words(head)
        self._wait_released(request)
        if self._is_refused(request):
            _body(asked, head, lambda _: None)
            client.sendall(_REFUSAL)
            return True
        server.sendall(head)
        _body(asked, head, server.sendall)
        head = _head(answered)
        client.sendall(head)
        if b" 101 " in head.partition(b"\r\n")[0] or b"raw-stream" in head:
            self._splice(client, server, asked=asked, answered=answered)
            return False
        if request == "GET /events":
            self._stream(client, answered)
            return False
        status = int(head.split(b" ", 2)[1])
        if status not in (204, 304):
            _body(answered, head, client.sendall)
        return b"connection: close" not in head.lower()

    def _wait_released(self, request: str) -> None:
        with self._lock:
            self._requests.append(request)
            holding = [entry for entry in self._hanging if entry[0].fullmatch(request)]
        for _, asked, released in holding:
            asked.set()
            released.wait(_HANG_SECONDS)

    def _is_refused(self, request: str) -> bool:
        with self._lock:
            return any(entry.fullmatch(request) for entry in self._refused)

    def _stream(self, client: socket.socket, answered: BufferedReader) -> None:
        with self._lock:
            self._streams.add(client)
        try:
            while data := _chunk(answered):
                if not self._passed(client, data):
                    return
        finally:
            with self._lock:
                self._streams.discard(client)

    def _passed(self, client: socket.socket, data: bytes) -> bool:
        """Forward a piece of an event stream, changed by its fault; return False if the stream must be cut."""
        with self._lock:
            fault = next(self._faults, "pass")
        if fault == "late":
            threading.Event().wait(_LATE_SECONDS)
        if fault == "half":
            client.sendall(f"{len(data):x}\r\n".encode() + data[: len(data) // 2])
        elif fault != "drop":
            framed = f"{len(data):x}\r\n".encode() + data + b"\r\n"
            client.sendall(framed * (2 if fault == "twice" else 1))
        return fault not in ("cut", "half")

    def _splice(
        self, client: socket.socket, server: socket.socket, *, asked: BufferedReader, answered: BufferedReader
    ) -> None:
        def back() -> None:
            with suppress(OSError):
                while piece := answered.read1(_PIECE):
                    client.sendall(piece)
                client.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=back, name="docker-proxied-back", daemon=True)
        thread.start()
        while piece := asked.read1(_PIECE):
            server.sendall(piece)
        server.shutdown(socket.SHUT_WR)
        thread.join()


def _head(reader: BufferedReader) -> bytes:
    lines = []
    while (line := reader.readline()) != b"\r\n":
        if not line:
            raise EOFError
        lines.append(line)
    return b"".join(lines) + b"\r\n"


def _words(head: bytes) -> str:
    method, target, _ = head.partition(b"\r\n")[0].decode().split(" ")
    path = target.partition("?")[0]
    return f"{method} {re.sub(r'^/v[0-9.]+', '', path)}"


def _body(reader: BufferedReader, head: bytes, send: Callable[[bytes], object]) -> None:
    """Forward the body that belongs to `head`."""
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        while data := _chunk(reader):
            send(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        send(b"0\r\n\r\n")
    elif length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
        send(reader.read(int(length[1])))


def _chunk(reader: BufferedReader) -> bytes:
    """Read a chunk of a chunked body; empty at its end."""
    size = int(reader.readline().strip() or b"0", 16)
    data = reader.read(size)
    reader.readline()
    return data
