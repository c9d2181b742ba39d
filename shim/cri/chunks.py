"""Streamed lists go out in pieces that stay far below what a client takes as one message."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

CHUNK = 500
"""Items of one message: about 1 MiB of pods with generous annotations, where the kubelet takes 16."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split `items` into parts of at most CHUNK, in order."""
    for start in range(0, len(items), CHUNK):
        yield items[start : start + CHUNK]
