"""What there is to know of a logging driver of Docker: where its files are, and how their bytes become CRI lines.

Everything else, rotation, finding the position again, writing, is the same for all of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shim.logs.crilog import Written

CHUNK = 1 << 18
"""Bytes of one read of Docker's files: more than a record of any driver has."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What was read of Docker's file."""

    text: bytes
    """Lines of a CRI log, each with its newline, in order."""
    count: int
    """How many records they stand for."""
    unreadable: int = 0
    """Records that could not be read: a daemon that crashes, or finds the disk full, leaves a torn one."""


@dataclass(frozen=True, slots=True)
class Marks:
    """What to look for where it would take too long to read everything."""

    time: bytes
    """Is in every record of one time; another may have it in its content."""
    stream: bytes
    """Is in every record of one stream, and in no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The files of one driver. Pure, but for `backwards`."""

    path: Callable[[str], str]
    """Where Docker writes, by the directory it has for the container."""
    path_is_reported: bool
    """Docker reports that path as `LogPath` of an inspect, once the container has been started."""
    made_at_start: bool
    """The directory of that file is made when the container is started, not when it is created."""
    whole: Callable[[bytes], int]
    """How many bytes, from the beginning of a record on, are whole records, or rubbish that none will come of.

    0 where more has to be waited for, never for CHUNK bytes.
    """
    lines: Callable[[bytes], Lines]
    """Read whole records."""
    each: Callable[[bytes], Iterator[tuple[int, bytes]]]
    """Read whole records one by one: the offset where each that can be read ends, and its CRI line."""
    backwards: Callable[[int], Iterator[tuple[int, bytes]]]
    """Whole records of an open file in groups, the last group first, each with the offset where it begins."""
    marks: Callable[[Written], Marks]
    """What to look for to find the records of a CRI line's time and stream."""
