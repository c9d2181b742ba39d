"""Decodes Docker's multiplexed stream: stdout and stderr of a process without a terminal on one connection.

A frame is a header of 8 bytes (stream number, three zero bytes, payload length as big-endian uint32) and its payload
(source: the Engine API, "Attach to a container", stream format). Stream 3 carries an error of the daemon.
"""

import struct

STDIN, STDOUT, STDERR, SYSTEM_ERROR = 0, 1, 2, 3

MAX_PAYLOAD = 16 * 1024 * 1024
"""Docker copies in pieces of 32 KiB; a much longer frame means that the stream has another format."""

_HEADER = struct.Struct(">II")
_ZEROS = 0xFF_FFFF
"""The bits of the first word that are always 0."""

Frame = tuple[int, bytes]
"""A stream number and non-empty bytes. The boundaries between frames have no meaning."""


class MalformedStream(Exception):
    """The bytes are not Docker's multiplexed format, or end inside a frame."""


class Decoder:
    """Decodes bytes into frames."""

    __slots__ = ("_header", "_left", "_stream")

    def __init__(self) -> None:
        self._header = b""
        """The beginning of an incomplete header."""
        self._stream = STDOUT
        self._left = 0
        """Remaining bytes of the current payload."""

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames in `data`, including the available part of an incomplete payload.

        Docker frames each 4 KiB that a process writes. Consecutive frames of a stream are joined, since the later costs
        are per piece and not per byte.
        """
        frames: list[Frame] = []
        data, self._header = self._header + data, b""
        view, at, end = memoryview(data), 0, len(data)
        stream, left = self._stream, self._left
        pieces: list[memoryview] = []
        while at < end:
            if left:
                piece = view[at : at + left]
                pieces.append(piece)
                at += len(piece)
                left -= len(piece)
                continue
            if end - at < _HEADER.size:
                self._header = data[at:]
                break
            number, left = _read_header(data, at)
            at += _HEADER.size
            if number != stream and pieces:
                frames.append((stream, b"".join(pieces)))
                pieces = []
            stream = number
        if pieces:
            frames.append((stream, b"".join(pieces)))
        self._stream, self._left = stream, left
        return frames

    def end(self) -> None:
        """Handle the end of the stream. Raise MalformedStream if a frame is incomplete."""
        if self._left or self._header:
            raise MalformedStream(f"the stream ended inside a frame, {self._left} bytes before the end of its payload")


def _read_header(data: bytes, at: int) -> tuple[int, int]:
    """Return the stream and the payload length of the frame at an offset."""
    word, size = _HEADER.unpack_from(data, at)
    stream = word >> 24
    if stream > SYSTEM_ERROR or word & _ZEROS or size > MAX_PAYLOAD:
        raise MalformedStream(f"not a frame header: {data[at : at + _HEADER.size].hex()}")
    return stream, size
