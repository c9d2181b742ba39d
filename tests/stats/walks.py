"""Walks of the disk, run to their end."""

from collections.abc import Generator
from pathlib import Path

from shim.stats.disk import Sum, walk


def total(top: Path) -> Sum:
    """Return the usage of a directory."""
    return finished(walk(top))


def finished(walking: Generator[None, None, Sum]) -> Sum:
    """Return the result of a walk that may have begun."""
    while True:
        try:
            next(walking)
        except StopIteration as end:
            found: Sum = end.value
            return found
