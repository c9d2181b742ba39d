"""Split streamed lists into messages of a size that any client accepts."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

CHUNK = 500
"""Most items of one message."""
CHUNK_BYTES = 2 << 20
"""Most bytes of one message's items, unless a single one is larger: gRPC clients take 4 MiB by
default, and the annotations of one pod may come to 256 KiB."""


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
