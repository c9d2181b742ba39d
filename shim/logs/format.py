"""The interface of a logging driver of Docker: where its files are, and how their bytes become CRI lines.

Everything else (rotation, finding the position again, writing) is the same for all drivers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shim.logs.crilog import Written

CHUNK = 1 << 18
"""Bytes of one read of Docker's files: more than a record of any driver has."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The result of reading a part of Docker's file."""

    text: bytes
    """Lines of a CRI log, each with its newline, in order."""
    count: int
    """Number of records they were made of."""
    unreadable: int = 0
    """Records that could not be read: a daemon that crashes, or finds the disk full, leaves a torn one."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Byte patterns to search for where decoding every record would take too long."""

    time: bytes
    """Contained in every record of one time; another record may have it in its content."""
    stream: bytes
    """Contained in every record of one stream, and in no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The files of one driver. Pure, but for `backwards`."""

    path: Callable[[str], str]
    """Return the file Docker writes, by its directory for the container."""
    path_is_reported: bool
    """Docker reports that path as `LogPath` of an inspect, once the container has been started."""
    made_at_start: bool
    """The directory of that file is created when the container is started, not when it is created."""
    whole: Callable[[bytes], int]
    """Return how many bytes, from the beginning of a record on, are whole records, or garbage that will never be one.

    0 if more bytes are needed; never for CHUNK bytes.
    """
    lines: Callable[[bytes], Lines]
    """Convert whole records."""
    each: Callable[[bytes], Iterator[tuple[int, bytes]]]
    """Yield whole records one by one: the offset where each readable one ends, and its CRI line."""
    backwards: Callable[[int], Iterator[tuple[int, bytes]]]
    """Yield the whole records of an open file in groups, the last group first, each with its offset."""
    additions: tuple[str, ...] = ()
    """Options that only add to each record. Docker merges those of its own configuration into ours where it keeps its
    logs with the same driver, unless ours are there; an empty one adds nothing."""
    marks: Callable[[Written], Marks]
    """Return the patterns of records of a CRI line's time and stream."""
