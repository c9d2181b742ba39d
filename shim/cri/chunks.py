"""Splits streamed lists into messages small enough for any client."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

CHUNK = 500
"""Items of a message at most."""
CHUNK_BYTES = 2 << 20
"""Bytes of a message's items at most, unless a single item is larger. gRPC clients accept 4 MiB by default, and the
annotations of a pod may have 256 KiB."""


def chunks(items: Sequence[M]) -> Iterator[Sequence[M]]:
    """Split `items` into parts of at most CHUNK items and CHUNK_BYTES, in order."""
    part: list[M] = []
    size = 0
    for item in items:
        more = item.ByteSize()
        if part and (len(part) == CHUNK or size + more > CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part
