"""ttrpc, containerd's remote procedure calls: messages with a header of ten bytes. Sans-IO.

The header consists of the message's length and stream number, both big-endian, a type and flags. The streams of a
caller are odd. Each stream carries one call, because NRI does not stream messages.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = struct.Struct(">IIBB")
REQUEST, RESPONSE = 1, 2
MESSAGE_LIMIT = 4 << 20
"""Maximum bytes of a message, as in containerd's own library."""


class TooLong(Exception):
    """A message longer than `MESSAGE_LIMIT`."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message."""

    stream: int
    type: int
    content: bytes


class Messages:
    """Assembles the messages of a connection. It buffers at most one incomplete message."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: memoryview) -> Iterator[Message]:
        """Yield the messages that `data` completes. Raise TooLong once the header of a message is complete."""
        while data:
            missing = self._end() - len(self._buffer)
            self._buffer += data[:missing]
            data = data[missing:]
            if len(self._buffer) == HEADER.size:
                self._check()
            if len(self._buffer) == self._end():
                _, stream, kind, _ = HEADER.unpack_from(self._buffer)
                content = bytes(memoryview(self._buffer)[HEADER.size :])
                self._buffer = bytearray()
                yield Message(stream, kind, content)

    def _end(self) -> int:
        """Return the length of header and message; of the header alone until the header is complete."""
        if len(self._buffer) < HEADER.size:
            return HEADER.size
        length: int = HEADER.unpack_from(self._buffer)[0]
        return HEADER.size + length

    def _check(self) -> None:
        length = self._end() - HEADER.size
        if length > MESSAGE_LIMIT:
            raise TooLong(f"a message of {length} bytes, at most {MESSAGE_LIMIT}")


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Raise TooLong if the peer would refuse it."""
    if len(message.content) > MESSAGE_LIMIT:
        raise TooLong(f"a message of {len(message.content)} bytes, at most {MESSAGE_LIMIT}")
    return HEADER.pack(len(message.content), message.stream, message.type, 0) + message.content
