"""PullImage with as little between as there can be: one connection, HTTP/2 frames, no client library.

The floor's client, `floor.DirectDocker`, is as bare. grpcio's takes about 1 ms longer for one call: a twentieth of the
pull of an image that is present, and neither the server's time nor that of a kubelet, which is no Python program.
"""

import socket
import struct
from pathlib import Path
from typing import Self

from shim.api.v1 import api_pb2 as pb

_SECONDS = 120.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Types of frames, and flags (RFC 9113, section 6).
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4

_WIDE = (1 << 30).to_bytes(4, "big")
"""Bytes the server may send on the connection beyond the first 64 KiB: more than all answers take."""


def _literal(name: str, value: str) -> bytes:
    """Encode a header without any compression (RFC 7541, section 6.2.2), so that it says the same at each call."""
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


_PULL = b"".join(
    _literal(name, value)
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/runtime.v1.ImageService/PullImage"),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    )
)


class DirectCri:
    """One connection to a CRI server, for one call at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_SECONDS)
        self._socket.connect(str(path))
        self._arrived = b""
        self._stream = -1
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_WINDOW_UPDATE, 0, 0, _WIDE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def pull(self, image: str) -> pb.PullImageResponse:
        """Pull an image. RuntimeError when the server says anything but that it is there."""
        message = pb.PullImageRequest(image=pb.ImageSpec(image=image)).SerializeToString()
        self._stream += 2
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self._stream, _PULL)
            + _frame(_DATA, _END_STREAM, self._stream, struct.pack(">BI", 0, len(message)) + message)
        )
        answer = self._answer()
        if not answer:  # a status alone: the error and its words are in the server's log
            raise RuntimeError(f"PullImage {image} failed")
        return pb.PullImageResponse.FromString(answer[5:])

    def _answer(self) -> bytes:
        """Read until the stream has ended; gives what is in its DATA frames."""
        body = b""
        while True:
            kind, flags, stream, payload = self._next()
            if kind == _SETTINGS and not flags & _ACK:
                self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                self._socket.sendall(_frame(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY or (kind == _RST_STREAM and stream == self._stream):
                raise RuntimeError(f"the CRI server ended the call: {payload!r}")
            elif stream == self._stream:
                body += payload if kind == _DATA else b""
                if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                    return body

    def _next(self) -> tuple[int, int, int, bytes]:
        """Read one frame: its type, flags, stream and payload."""
        head = self._taken(9)
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        return kind, flags, stream, self._taken(int.from_bytes(head[:3], "big"))

    def _taken(self, size: int) -> bytes:
        while len(self._arrived) < size:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise RuntimeError("the CRI server closed the connection")
            self._arrived += piece
        taken, self._arrived = self._arrived[:size], self._arrived[size:]
        return taken


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload
