"""Packets between the server and its helper process: a number and a pickled object.

Pickle, since both are one installation and the socket is theirs alone: a process that could write to it is root
already.
The number stands outside, so that a call which cannot be read can still be answered.
"""

import pickle
from typing import Any

MAX_PACKET = 128 << 10
"""Bytes. Paths have at most 4 KiB; the kernel takes 208 KiB in one packet by default."""

_NUMBER_BYTES = 8

PING = bytes(_NUMBER_BYTES)
"""Ping, and the answer to it. No call has the number 0."""


def packed(number: int, content: object) -> bytes:
    """Return the packet. ValueError when it is too long; and whatever pickle raises for what it cannot take."""
    packet = number.to_bytes(_NUMBER_BYTES, "big") + pickle.dumps(content)
    if len(packet) > MAX_PACKET:
        raise ValueError(f"{len(packet)} bytes, at most {MAX_PACKET} can be sent")
    return packet


def number_of(packet: bytes) -> int:
    """Return the number of a packet: which call it is, or answers."""
    return int.from_bytes(packet[:_NUMBER_BYTES], "big")


def content_of(packet: bytes) -> Any:
    """Return what was packed. Raise whatever pickle does, where the two processes are not one version."""
    return pickle.loads(packet[_NUMBER_BYTES:])  # noqa: S301 - as above
