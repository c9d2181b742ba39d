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
"""Stream number and payload, never empty. A payload may come in several frames, as its bytes arrive."""


class MalformedStream(Exception):
    """The bytes are not Docker's multiplexed format, or end inside a frame."""


class Decoder:
    """Bytes in, frames out."""

    __slots__ = ("_buffer", "_left", "_stream")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._stream = STDOUT
        self._left = 0
        """Bytes of the current payload still to come."""

    def receive(self, data: bytes) -> list[Frame]:
        """Give the frames that `data` brings; the part of a payload that is there is not held back."""
        self._buffer += data
        frames = []
        while self._buffer and (self._left or self._take_header()):
            if payload := bytes(self._buffer[: self._left]):
                del self._buffer[: len(payload)]
                self._left -= len(payload)
                frames.append((self._stream, payload))
        return frames

    def end(self) -> None:
        """Say that no more bytes come; MalformedStream when a frame is incomplete."""
        if self._left or self._buffer:
            raise MalformedStream(f"the stream ended inside a frame, {self._left} bytes before the end of its payload")

    def _take_header(self) -> bool:
        if len(self._buffer) < _HEADER.size:
            return False
        stream, zeros, size = _HEADER.unpack_from(self._buffer)
        if stream > SYSTEM_ERROR or any(zeros) or size > MAX_PAYLOAD:
            raise MalformedStream(f"not a frame header: {self._buffer[: _HEADER.size].hex()}")
        del self._buffer[: _HEADER.size]
        self._stream, self._left = stream, size
        return True
