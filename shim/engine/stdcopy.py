"""Docker's multiplexed stream: stdout and stderr of a process without a terminal, framed on one connection.

A frame is a header of 8 bytes (stream number, three zero bytes, payload length as big-endian uint32) and its payload
(source: the Engine API, "Attach to a container", stream format). Stream 3 carries an error of the daemon itself.
"""

import struct

STDIN, STDOUT, STDERR, SYSTEM_ERROR = 0, 1, 2, 3

MAX_PAYLOAD = 16 * 1024 * 1024
"""Docker copies in pieces of 32 KiB; a far longer frame means that this is not the multiplexed format."""

_HEADER = struct.Struct(">B3sI")

Frame = tuple[int, bytes]
"""Stream number and bytes, never empty. Where they are cut says nothing: they are what has arrived so far."""


class MalformedStream(Exception):
    """The bytes are not Docker's multiplexed format, or end inside a frame."""


class Decoder:
    """Bytes in, frames out."""

    __slots__ = ("_header", "_left", "_stream")

    def __init__(self) -> None:
        self._header = b""
        """The beginning of a header, of which the rest is still to come."""
        self._stream = STDOUT
        self._left = 0
        """Bytes of the current payload still to come."""

    def receive(self, data: bytes) -> list[Frame]:
        """Give what `data` brings; the part of a payload that is there is not held back.

        Docker frames each 4 KiB that a process writes. Those of one stream are joined: everything behind this costs
        per piece more than per byte.
        """
        joined: list[tuple[int, list[memoryview]]] = []
        view, at = memoryview(self._header + data), 0
        self._header = b""
        while at < len(view):
            if not self._left:
                at += self._take_header(view[at : at + _HEADER.size])
                continue
            piece = view[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if not joined or joined[-1][0] != self._stream:
                joined.append((self._stream, []))
            joined[-1][1].append(piece)
        return [(stream, b"".join(pieces)) for stream, pieces in joined]

    def end(self) -> None:
        """Say that no more bytes come; MalformedStream when a frame is incomplete."""
        if self._left or self._header:
            raise MalformedStream(f"the stream ended inside a frame, {self._left} bytes before the end of its payload")

    def _take_header(self, header: memoryview) -> int:
        """Read a header, or keep the beginning of one; gives its length."""
        if len(header) < _HEADER.size:
            self._header = bytes(header)
            return len(header)
        stream, zeros, size = _HEADER.unpack(header)
        if stream > SYSTEM_ERROR or any(zeros) or size > MAX_PAYLOAD:
            raise MalformedStream(f"not a frame header: {header.hex()}")
        self._stream, self._left = stream, size
        return _HEADER.size
