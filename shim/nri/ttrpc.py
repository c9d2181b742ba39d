"""ttrpc, the remote procedure calls of containerd: messages with a header of ten bytes. Sans-IO.

The header is the length of the message, the number of its stream, both big-endian, its type and its flags. Streams of a
caller are odd, and a stream is one call: streams of several messages are not used by NRI.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

HEADER = struct.Struct(">IIBB")
REQUEST, RESPONSE = 1, 2
MESSAGE_LIMIT = 4 << 20
"""Most bytes of a message, as in containerd's own library."""


class TooLong(Exception):
    """A message beyond `MESSAGE_LIMIT`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message."""

    stream: int
    type: int
    content: bytes


class Messages:
    """Puts the messages of one connection together. It holds at most one that is not complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """Bytes of the message that is not complete."""
        return len(self._buffer)

    def receive(self, data: memoryview) -> Iterator[Message]:
        """Yield the messages that `data` completes. Raise TooLong as soon as the length of one is known."""
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
        """Return how many bytes the message has with its header; of that alone while it is not known."""
        if len(self._buffer) < HEADER.size:
            return HEADER.size
        length: int = HEADER.unpack_from(self._buffer)[0]
        return HEADER.size + length

    def _check(self) -> None:
        length = self._end() - HEADER.size
        if length > MESSAGE_LIMIT:
            raise TooLong(f"a message of {length} bytes, at most {MESSAGE_LIMIT}")


def encode(message: Message) -> bytes:
    """Return the bytes of a message. Raise TooLong, also for one that the peer would refuse."""
    if len(message.content) > MESSAGE_LIMIT:
        raise TooLong(f"a message of {len(message.content)} bytes, at most {MESSAGE_LIMIT}")
    return HEADER.pack(len(message.content), message.stream, message.type, 0) + message.content
