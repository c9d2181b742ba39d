"""Walks of the disk, done at once."""

from collections.abc import Generator
from pathlib import Path

from shim.stats.disk import Sum, walk


def total(top: Path) -> Sum:
    """What a directory takes."""
    return finished(walk(top))


def finished(walking: Generator[None, None, Sum]) -> Sum:
    """What a walk finds that may have begun."""
    while True:
        try:
            next(walking)
        except StopIteration as end:
            found: Sum = end.value
            return found
