"""The multiplexer of NRI: several connections over one socket. Sans-IO.

A frame consists of a connection number and a length, both big-endian with four bytes, and then payload of this length.
A frame may end anywhere in a message.
"""

import struct
from collections.abc import Iterator

from shim.nri import ttrpc

PLUGIN = 1
"""The connection on which the runtime, this server, calls the plugin."""
RUNTIME = 2
"""The connection on which the plugin calls the runtime."""

FRAME_LIMIT = ttrpc.HEADER.size + ttrpc.MESSAGE_LIMIT
"""Maximum payload bytes of a frame; plugins in Go have the same limit."""
_HEADER = struct.Struct(">II")
_BUFFER = 4096
"""Bytes that a plugin in Go reads before it knows a message's length. A longer first frame ends its connection."""


class ProtocolError(Exception):
    """The peer has broken the protocol. Its connection must be closed."""


class Demultiplexer:
    """Splits a socket's bytes into connections. It buffers only an incomplete header and passes on payload at once."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0
        """Bytes of the current frame not received yet."""

    def receive(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece of payload with the number of its connection. Raise ProtocolError if a frame is too long."""
        while data:
            if not self._left:
                data = self._take_header(data)
                continue
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            yield self._connection, piece

    def _take_header(self, data: memoryview) -> memoryview:
        missing = _HEADER.size - len(self._header)
        self._header += data[:missing]
        if len(self._header) == _HEADER.size:
            self._connection, self._left = _HEADER.unpack(self._header)
            self._header.clear()
            if self._left > FRAME_LIMIT:
                raise ProtocolError(f"a frame of {self._left} bytes, at most {FRAME_LIMIT}")
        return data[missing:]


def frames(connection: int, message: bytes) -> bytes:
    """Return the frames of a whole message: two at most.

    The first frame fits into the first read of a plugin in Go. The second frame holds the rest, because a plugin queues
    at most 256 frames.
    """
    parts = [part for part in (message[:_BUFFER], message[_BUFFER:]) if part]
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts)
