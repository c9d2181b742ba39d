"""A minimal CRI client: one connection, HTTP/2 frames, no client library.

The floor's client, `floor.DirectDocker`, is as small. grpcio adds about 1 ms to a call. This time belongs neither to
the server nor to a kubelet, which is no Python program.
"""

import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, Self

from integration.cri import Cri
from shim.api.v1.api_pb2_grpc import ImageServiceStub, RuntimeServiceStub

_SECONDS = 120.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types and flags (RFC 9113, section 6).
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4

_INITIAL_WINDOW_SIZE = 4
_WIDE = 1 << 30
"""Flow-control window of each stream and of the connection, in bytes: larger than any answer."""


def _literal(name: str, value: str) -> bytes:
    """Encode a header without compression (RFC 7541, section 6.2.2), so that each call sends the same bytes."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def _headers(path: str) -> bytes:
    return b"".join(
        _literal(name, value)
        for name, value in (
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        )
    )


@contextmanager
def direct_cri(path: Path) -> Iterator[Cri]:
    """Connect to a CRI server, for one call at a time."""
    with DirectChannel(path) as channel:
        yield Cri(RuntimeServiceStub(channel), ImageServiceStub(channel))  # type: ignore[arg-type] # all that stubs use


class DirectChannel:
    """A connection to a gRPC server for one unary call at a time, in place of a `grpc.Channel`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_SECONDS)
        self._socket.connect(str(self._path))
        self._arrived = b""
        self._stream = -1
        window = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _WIDE)
        wide = _WIDE.to_bytes(4, "big")
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, window) + _frame(_WINDOW_UPDATE, 0, 0, wide))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def unary_unary(
        self,
        path: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **_options: object,
    ) -> Callable[[Any], Any]:
        """Return a method of a stub. It raises RuntimeError unless the server answers with a message."""
        headers = _headers(path)

        def call(request: Any) -> Any:
            answer = self._call(headers, request_serializer(request))
            if not answer:  # only a status: the server's log has the error
                raise RuntimeError(f"{path} failed")
            return response_deserializer(answer[5:])

        return call

    def unary_stream(self, path: str, *_serializers: object, **_options: object) -> Callable[[Any], NoReturn]:
        """Return a method of a stub that raises NotImplementedError."""

        def call(_request: Any) -> NoReturn:
            raise NotImplementedError(f"{path} is a streaming call")

        return call

    def _call(self, headers: bytes, message: bytes) -> bytes:
        if self._has_ended():
            self._socket.close()
            self._connect()
        self._stream += 2
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self._stream, headers)
            + _frame(_DATA, _END_STREAM, self._stream, struct.pack(">BI", 0, len(message)) + message)
        )
        return self._answer()

    def _has_ended(self) -> bool:
        """Return whether the server has closed the connection, as it does after unanswered pings."""
        try:
            while self._arrived or select.select([self._socket], [], [], 0)[0]:
                kind, flags, _stream, payload = self._next()
                if kind == _GOAWAY:
                    return True
                self._acknowledge(kind, flags, payload)
        except (OSError, RuntimeError):
            return True
        return False

    def _answer(self) -> bytes:
        """Read until the stream ends; return the payload of its DATA frames."""
        body = b""
        while True:
            kind, flags, stream, payload = self._next()
            self._acknowledge(kind, flags, payload)
            if kind == _GOAWAY or (kind == _RST_STREAM and stream == self._stream):
                raise RuntimeError(f"the CRI server ended the call: {payload!r}")
            if stream == self._stream:
                body += payload if kind == _DATA else b""
                if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                    return body

    def _acknowledge(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))

    def _next(self) -> tuple[int, int, int, bytes]:
        """Read a frame: its type, flags, stream and payload."""
        head = self._read(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream, self._read(int.from_bytes(head[:3], "big"))

    def _read(self, size: int) -> bytes:
        while len(self._arrived) < size:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise RuntimeError("the CRI server closed the connection")
            self._arrived += piece
        taken, self._arrived = self._arrived[:size], self._arrived[size:]
        return taken


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload
