"""A proxy of the Engine that can fail or hold a chosen call, before the Engine sees it or after it is done.

It stands between the server and dockerd, so the server under test is started as users start it.
"""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

_PIECE = 64 * 1024
_REACHED_SECONDS = 60.0
_VERSION = re.compile(r"^/v\d+\.\d+")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_REFUSAL = b'{"message":"out of order"}'


class Moment(Enum):
    """When a fault strikes: before the Engine sees the call, or just after it is done."""

    BEFORE = auto()
    AFTER = auto()


class Fault:
    """A fault of the next call, or of every call."""

    def __init__(
        self, call: str, moment: Moment, happen: Callable[[socket.socket], bool], *, every: bool = False
    ) -> None:
        self.call = re.compile(call)
        self.moment = moment
        self.happen = happen
        """Injects the fault; returns whether the call goes on."""
        self.every = every
        self.met = False
        """Whether the call has arrived."""


class Hold:
    """A call that is held."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def __call__(self, _client: socket.socket) -> bool:
        """Block until released; the call does not go on."""
        self._reached.set()
        self._released.wait(_REACHED_SECONDS * 2)
        return False

    def wait_reached(self) -> None:
        """Wait until the call is held."""
        assert self.reached(_REACHED_SECONDS), "the call never came"

    def reached(self, seconds: float = 0) -> bool:
        """Wait up to `seconds` for the call to be held; return whether it is."""
        return self._reached.wait(seconds)

    def release(self) -> None:
        """Cut the connection of the call."""
        self._released.set()


class FaultProxy:
    """Forwards the connections of a socket to an Engine."""

    def __init__(self, upstream: Path, *, path: Path) -> None:
        self.upstream = upstream
        self.path = path
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.alteration: tuple[bytes, bytes] | None = None
        """The bytes replaced in answers, and their replacement."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        self._thread = threading.Thread(target=self._serve, name="fault-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which a close does not
        self._thread.join()
        self._listener.close()

    @contextmanager
    def refused(self, call: str, *, every: bool = False) -> Iterator[None]:
        """Answer the next `call` (a pattern of `METHOD /path`) with an Engine error; the Engine never sees the call."""
        with self._armed(Fault(call, Moment.BEFORE, _refuse, every=every)):
            yield

    @contextmanager
    def unanswered(self, call: str) -> Iterator[None]:
        """Forward the next `call`, and lose its answer."""
        with self._armed(Fault(call, Moment.AFTER, lambda _: False)):
            yield

    @contextmanager
    def held(self, call: str, *, at: Moment) -> Iterator[Hold]:
        """Hold the next `call`; its connection is cut when the block ends."""
        hold = Hold()
        try:
            with self._armed(Fault(call, at, hold)):
                yield hold
        finally:
            hold.release()

    @contextmanager
    def followed(self, call: str, action: Callable[[], object]) -> Iterator[None]:
        """Run `action` once the next `call` is done, before its answer is forwarded."""
        with self.interrupted(call, action, at=Moment.AFTER):
            yield

    @contextmanager
    def interrupted(self, call: str, action: Callable[[], object], *, at: Moment) -> Iterator[None]:
        """Run `action` in the middle of the next `call`, which then goes on. An exception closes the connection."""

        def done(_: socket.socket) -> bool:
            action()
            return True

        with self._armed(Fault(call, at, done)):
            yield

    @contextmanager
    def altered(self, old: bytes, new: bytes) -> Iterator[None]:
        """Replace `old` by `new`, which has the same length, in the answers to all calls.

        `old` must stand near the beginning of an answer, which arrives in one piece.
        """
        assert len(old) == len(new)
        self.alteration = old, new
        try:
            yield
        finally:
            self.alteration = None

    @contextmanager
    def _armed(self, fault: Fault) -> Iterator[None]:
        with self._lock:
            self._faults.append(fault)
        try:
            yield
        finally:
            with self._lock:
                if fault in self._faults:
                    self._faults.remove(fault)
        assert fault.met, f"no {fault.call.pattern} came"

    def due(self, call: str) -> Fault | None:
        """Remove and return the fault that is armed for this call."""
        with self._lock:
            for fault in self._faults:
                if fault.call.search(call):
                    fault.met = True
                    if not fault.every:
                        self._faults.remove(fault)
                    return fault
        return None

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=_Connection(self, client).run, daemon=True).start()


class _Connection:
    """A connection: reads requests one by one, and forwards answers as they arrive."""

    def __init__(self, proxy: FaultProxy, client: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = socket.socket(socket.AF_UNIX)
        self._due: Fault | None = None

    def run(self) -> None:
        with self._client, self._server:
            try:
                self._server.connect(str(self._proxy.upstream))
            except OSError:
                return  # the Engine is down: the client sees its connection end
            back = threading.Thread(target=self._pass_back, daemon=True)
            back.start()
            with suppress(OSError):
                self._pass_requests()
            self._end()
            back.join()

    def _pass_requests(self) -> None:
        reader = self._client.makefile("rb")
        while head := _head(reader):
            length = _LENGTH.search(head)
            body = reader.read(int(length[1])) if length else b""
            method, target, _ = head.split(b" ", 2)
            self._due = fault = self._proxy.due(f"{method.decode()} {_VERSION.sub('', target.decode())}")
            if fault is not None and fault.moment is Moment.BEFORE:
                self._due = None
                if not fault.happen(self._client):
                    return
            self._server.sendall(head + body)
            if _UPGRADE.search(head):
                self._pass_raw(reader)

    def _pass_raw(self, reader: BinaryIO) -> None:
        while piece := reader.read1(_PIECE):  # type: ignore[attr-defined] # a buffered reader has it
            self._server.sendall(piece)

    def _pass_back(self) -> None:
        with suppress(OSError):
            while piece := self._server.recv(_PIECE):
                fault, self._due = self._due, None
                if fault is not None and not fault.happen(self._client):
                    break
                alteration = self._proxy.alteration
                self._client.sendall(piece if alteration is None else piece.replace(*alteration))
        self._end()

    def _end(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _head(reader: BinaryIO) -> bytes:
    lines = []
    while line := reader.readline():
        lines.append(line)
        if line == b"\r\n":
            return b"".join(lines)
    return b""


def _refuse(client: socket.socket) -> bool:
    head = f"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: {len(_REFUSAL)}"
    client.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode() + _REFUSAL)
    return False
