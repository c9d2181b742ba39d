"""The multiplexer of NRI: several connections on one socket. Sans-IO.

Each frame is eight bytes, the number of its connection and the length of what follows, both big-endian, and then that
much of the connection's bytes. A frame may end anywhere in a message.
"""

import struct
from collections.abc import Iterator

from shim.nri import ttrpc

PLUGIN = 1
"""Connection on which the runtime calls the plugin."""
RUNTIME = 2
"""Connection on which the plugin calls the runtime."""

FRAME_LIMIT = ttrpc.HEADER.size + ttrpc.MESSAGE_LIMIT
"""Most bytes that a frame carries; plugins in Go send no larger one either."""
_HEADER = struct.Struct(">II")
_BUFFER = 4096
"""What a plugin in Go reads at a time, until it knows the length of a message: a larger frame ends its connection."""


class Broken(Exception):
    """The peer has broken the protocol: its connection is to be closed."""


class Demultiplexer:
    """Takes a socket's bytes apart. It holds no more than a header: what a frame carries is handed on at once."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0
        """Bytes of the frame that have not come yet."""

    def receive(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield each piece of `data` with the number of its connection. Raise Broken for a frame that is too long."""
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
                raise Broken(f"a frame of {self._left} bytes, at most {FRAME_LIMIT}")
        return data[missing:]


def frames(connection: int, message: bytes) -> bytes:
    """Return the frames of one whole message.

    Two at most: the first is no larger than what a plugin in Go reads before it knows the length, and the second has
    all the rest, for the plugin queues no more than 256 of them.
    """
    parts = [part for part in (message[:_BUFFER], message[_BUFFER:]) if part]
    return b"".join(_HEADER.pack(connection, len(part)) + part for part in parts)
