"""Finds the resume position in Docker's files from the end of the CRI log. No position is stored.

The record of the last CRI line is found in Docker's files by time, stream and content. All pieces of a long line have
the same time, and often the same content. So the run of pieces at the end of the CRI log is matched with the run of
records with the same time (`overlap`). Either run may span two files, because the kubelet and Docker rotate files. If
the record is missing, copying resumes at the first newer record, and the gap is reported.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shim.base.times import ns_from_rfc3339
from shim.logs.crilog import LineHead, first_time, read_head
from shim.logs.format import CHUNK, Format
from shim.logs.lines import last_lines_compressed, lines_backwards
from shim.logs.sink import COMPRESSED, rotated_logs


@dataclass(frozen=True, slots=True)
class Tail:
    """The head of the last line of a CRI log, and the hashes of the last lines with this head, oldest first."""

    last: LineHead
    run: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """The resume position: index of Docker's file, and offset in it."""

    which: int
    offset: int
    missing: tuple[str, str] | None = None
    """Times of the last written line and of the first remaining record, if Docker dropped records in between."""


@dataclass(frozen=True, slots=True)
class _Place:
    content: int
    which: int
    end: int


def written_tail(log: int, path: Path) -> Tail | None:
    """Read the end of the open CRI log `log`, and of its rotated files; return None if they contain no line.

    Skip text at the end of a file that is not a line of a CRI log.
    """
    last: LineHead | None = None
    run: list[int] = []
    for group in _groups(log, path):
        lines = group.split(b"\n")[:-1]
        while lines and (last := last or read_head(lines[-1])) is None:
            lines.pop()
        if last is None:
            continue
        here, complete = _run_in(lines, last)
        run = here + run
        if complete:
            break
    return None if last is None else Tail(last, tuple(run))


def _run_in(lines: list[bytes], last: LineHead) -> tuple[list[int], bool]:
    """Return the hashes of the lines in the run, and whether the run begins in these lines."""
    run: list[int] = []
    for line in reversed(lines):
        if line.startswith(last.prefix):
            run.insert(0, hash(line))
        elif _has_stream(line, last.stream):
            return run, True  # the pieces of one line are consecutive within their stream
    return run, False


def _groups(log: int, path: Path) -> Iterator[bytes]:
    yield from _groups_in(log, compressed=False)
    for rotated in rotated_logs(path):
        fd = os.open(rotated, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield from _groups_in(fd, compressed=rotated.suffix == COMPRESSED)
        finally:
            os.close(fd)


def _groups_in(fd: int, *, compressed: bool) -> Iterator[bytes]:
    if not compressed:
        yield from (group for _, group in lines_backwards(fd))
    elif group := last_lines_compressed(fd):
        yield group


def find_position(files: Sequence[int], tail: Tail | None, *, file_format: Format, since: int) -> Position:
    """Return the resume position in `files`, Docker's open files, oldest first, at least one.

    `since` is the creation time of the container, ns since the epoch. An older CRI log belongs to another container.
    """
    if tail is None:
        return Position(0, 0)
    places = _places(files, tail.last, file_format)
    done = overlap(tail.run, [place.content for place in places])
    if done:
        return Position(places[done - 1].which, places[done - 1].end)
    return _first_newer(files, tail.last.time, file_format=file_format, since=since)


def overlap(written: Sequence[int], held: Sequence[int]) -> int:
    """Return the length of the longest prefix of `held` that is a suffix of `written`.

    Both are parts of the sequence of all pieces of a line. `written` begins with the first piece. `held` may begin with
    a later piece, because Docker drops its oldest file.
    """
    for count in range(min(len(written), len(held)), 0, -1):
        if list(written[-count:]) == list(held[:count]):
            return count
    return 0


def _places(files: Sequence[int], last: LineHead, file_format: Format) -> list[_Place]:
    """Return the places of all records with the time and stream of `last`, in order."""
    marks = file_format.marks(last)
    found: list[_Place] = []
    for which in reversed(range(len(files))):
        for start, group in file_format.backwards(files[which]):
            here: list[_Place] = []
            complete = marks.stream in group
            if marks.time in group:
                lines = ((start + end, line) for end, line in file_format.each(group))
                here, complete = _places_in(lines, which=which, last=last)
            found = here + found
            if found and complete:
                return found
    return found


def _places_in(lines: Iterator[tuple[int, bytes]], *, which: int, last: LineHead) -> tuple[list[_Place], bool]:
    """Return the places of the run in `lines` (end offset and line), and whether the run begins in these lines."""
    here: list[_Place] = []
    older = False
    for end, line in lines:
        if line.startswith(last.prefix):
            here.append(_Place(hash(line[:-1]), which, end))
        elif _has_stream(line, last.stream):
            older = older or not here
    return here, older


def _has_stream(line: bytes, stream: str) -> bool:
    return line.split(b" ", 2)[1:2] == [stream.encode()]


def _first_newer(files: Sequence[int], time: str, *, file_format: Format, since: int) -> Position:
    """Return the position of the first record newer than `time`, or else the beginning.

    Report a gap only if all remaining records are newer and the log belongs to this container.
    """
    known, oldest = ns_from_rfc3339(time), True
    for which, fd in enumerate(files):
        for offset, first in _forwards(fd, file_format):
            if ns_from_rfc3339(first) > known:
                return Position(which, offset, (time, first) if oldest and known >= since else None)
            oldest = False
    return Position(0, 0)


def _forwards(fd: int, file_format: Format) -> Iterator[tuple[int, str]]:
    """Yield the offset and the time of each record of a file."""
    offset = 0
    while whole := file_format.whole(data := os.pread(fd, CHUNK, offset)):
        start = 0
        for end, line in file_format.each(data[:whole]):
            yield offset + start, first_time(line)
            start = end
        offset += whole
