"""Packets between the server and its helper process: a number and a pickled object.

Pickle is safe here, because only these two processes have the socket, and only root could write to it. The number is
outside the pickle, so that a call that cannot be unpickled can still be answered.
"""

import pickle
from typing import Any

MAX_PACKET = 128 << 10
"""Maximum bytes of a packet. Paths have at most 4 KiB; the kernel's default limit for packets is 208 KiB."""

_NUMBER_BYTES = 8

PING = bytes(_NUMBER_BYTES)
"""A ping, and its answer. No call has the number 0."""


def packed(number: int, content: object) -> bytes:
    """Return a packet. Raise ValueError if it is too long, and pickle's exceptions for unpicklable content."""
    packet = number.to_bytes(_NUMBER_BYTES, "big") + pickle.dumps(content)
    if len(packet) > MAX_PACKET:
        raise ValueError(f"{len(packet)} bytes, the limit is {MAX_PACKET}")
    return packet


def number_of(packet: bytes) -> int:
    """Return the number of the call in a packet, or of the call that the packet answers."""
    return int.from_bytes(packet[:_NUMBER_BYTES], "big")


def content_of(packet: bytes) -> Any:
    """Return the unpickled content. Raise pickle's exceptions, for example if the processes have different versions."""
    return pickle.loads(packet[_NUMBER_BYTES:])  # noqa: S301 - as above
