"""The interface of Docker's logging drivers: the paths of their files, and the conversion of records to CRI lines.

Rotation, resuming and writing are the same for all drivers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shim.logs.crilog import LineHead

CHUNK = 1 << 18
"""Maximum bytes of a read of Docker's files. A record of any driver is smaller."""


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
    """Byte patterns to search for, because decoding all records would take too long."""

    time: bytes
    """Occurs in every record with a given time, and perhaps in the content of other records."""
    stream: bytes
    """Occurs in every record of a given stream, and in no other record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The file format of a driver. All functions but `backwards` are pure."""

    path: Callable[[str], str]
    """Return the path of the log file in Docker's directory for the container."""
    path_is_reported: bool
    """Whether Docker reports the path as `LogPath` of an inspect once the container has been started."""
    made_at_start: bool
    """Whether Docker creates the file's directory at the start of the container, not at its creation."""
    whole: Callable[[bytes], int]
    """Return the length of the whole records, or of garbage to skip, at the beginning of the bytes.

    The bytes begin with a record. 0 means that more bytes are needed; it is never returned for CHUNK bytes or more.
    """
    lines: Callable[[bytes], Lines]
    """Convert whole records."""
    each: Callable[[bytes], Iterator[tuple[int, bytes]]]
    """Yield the end offset and the CRI line of each readable record."""
    backwards: Callable[[int], Iterator[tuple[int, bytes]]]
    """Yield the whole records of an open file in groups, each with its offset, the last group first."""
    additions: tuple[str, ...] = ()
    """Log options that only add fields to each record. An empty value adds nothing, and overrides the default options
    of dockerd."""
    marks: Callable[[LineHead], Marks]
    """Return the byte patterns of records with the time and stream of a CRI line."""
