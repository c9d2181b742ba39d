"""The interface of a logging driver of Docker: where its files are, and how their records become CRI lines.

Rotation, finding the position and writing are the same for all drivers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shim.logs.crilog import LineHead

CHUNK = 1 << 18
"""Bytes of a read of Docker's files. A record of any driver is smaller."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Converted records."""

    text: bytes
    """Lines of a CRI log, each with its newline, in order."""
    count: int
    """Number of converted records."""
    unreadable: int = 0
    """Number of unreadable records: a crash of Docker or a full disk leaves a torn record."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Byte patterns that find records without decoding all of them, which would take too long."""

    time: bytes
    """Occurs in every record of a given time, and perhaps in the content of other records."""
    stream: bytes
    """Occurs in every record of a given stream, and in no other record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The file format of a driver. All functions but `backwards` are pure."""

    path: Callable[[str], str]
    """Return the path of the log file in Docker's directory for the container."""
    path_is_reported: bool
    """Docker reports the path as `LogPath` of an inspect once the container has been started."""
    made_at_start: bool
    """Docker creates the directory of the file when the container is started, not when it is created."""
    whole: Callable[[bytes], int]
    """Return the number of bytes, from the beginning of a record on, that are whole records or garbage to skip.

    0 means that more bytes are needed. The result is never 0 for CHUNK bytes or more.
    """
    lines: Callable[[bytes], Lines]
    """Convert whole records."""
    each: Callable[[bytes], Iterator[tuple[int, bytes]]]
    """Yield the end offset and the CRI line of each readable record."""
    backwards: Callable[[int], Iterator[tuple[int, bytes]]]
    """Yield the offset and the bytes of groups of whole records of an open file, the last group first."""
    additions: tuple[str, ...] = ()
    """Log options that only add fields to each record. A container that does not set them gets Docker's default for the
    same driver; an empty value prevents that and adds nothing."""
    marks: Callable[[LineHead], Marks]
    """Return the byte patterns of records with the time and the stream of a CRI line."""
