"""A relay in front of a server that records the order of its answers on a connection.

The threads of a client may reorder answers, but the frames of an HTTP/2 connection have a fixed order.
"""

import contextlib
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_DATA, _HEADERS = 0, 1


@dataclass
class _Messages:
    """Counts the messages of a stream: five bytes precede each, of which the last four are its length."""

    count: int = 0
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 5 and len(self._rest) >= 5 + (size := struct.unpack(">I", self._rest[1:5])[0]):
            self._rest = self._rest[5 + size :]
            self.count += 1


@dataclass
class Frames:
    """Frames that the server has sent on a connection."""

    messages: dict[int, _Messages] = field(default_factory=dict)
    """By stream id; clients use 1, 3, 5 and so on."""
    before: dict[int, Counter[int]] = field(default_factory=dict)
    """Message counts of all streams at the first headers of a stream, by that stream's id."""
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 9 and len(self._rest) >= 9 + (size := int.from_bytes(self._rest[:3], "big")):
            kind, flags = self._rest[3], self._rest[4]
            stream = int.from_bytes(self._rest[5:9], "big") & 0x7FFFFFFF
            payload, self._rest = self._rest[9 : 9 + size], self._rest[9 + size :]
            if kind == _DATA:
                assert not flags & 0x8, "a padded frame"
                self.messages.setdefault(stream, _Messages()).feed(payload)
            elif kind == _HEADERS and stream not in self.before:
                self.before[stream] = Counter({number: each.count for number, each in self.messages.items()})


class Relay:
    """Relays a connection to the server at `path`, from `start` to `stop`."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_suffix(".relay")
        self.frames = Frames()
        self._target = path
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen()
        self._sockets.append(listener)
        self._begin(self._accept, listener)

    def stop(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        for each in self._sockets:
            each.close()

    def _begin(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]  # any function
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            self._sockets += [client, server]
            server.connect(str(self._target))
            self._begin(self._pass_on, client, server, False)
            self._begin(self._pass_on, server, client, True)

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_noted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if is_noted:
                    self.frames.feed(data)
                sink.sendall(data)
