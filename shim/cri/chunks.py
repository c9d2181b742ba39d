"""Streamed lists go out in pieces that stay far below what a client takes as one message."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

CHUNK = 500
"""Items of one message: about 1 MiB of pods with generous annotations, where the kubelet takes 16."""

METRICS_CHUNK = 50
"""Pods of one message of metrics: each container has some fifty of 200 bytes."""


def chunks(items: Sequence[T], *, size: int = 0) -> Iterator[Sequence[T]]:
    """Split `items` into parts of at most `size`, else CHUNK, in order."""
    step = size or CHUNK
    for start in range(0, len(items), step):
        yield items[start : start + step]
