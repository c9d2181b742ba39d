"""Where in Docker's files to go on, found from what the CRI log holds already: nothing else is kept anywhere.

The last line that was written is sought by its time, stream and content. All pieces of one long line have the same
time, and often the same content, so it is the run of them that is matched. That run may lie in two CRI logs, since
the kubelet rotates, and in two files of Docker's.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shim.base.times import ns_from_rfc3339
from shim.logs.crilog import Written, first_time, read_head
from shim.logs.format import CHUNK, Format
from shim.logs.lines import last_lines_compressed, lines_backwards
from shim.logs.sink import COMPRESSED, rotated_logs


@dataclass(frozen=True, slots=True)
class Tail:
    """The last line of a CRI log, and the lines before it of the same time and stream, as hashes, oldest first."""

    last: Written
    run: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Position:
    """Where to go on: which of Docker's files, and at which offset."""

    which: int
    offset: int
    missing: tuple[str, str] | None = None
    """Times of the last line that was written and of the first that is left, where Docker has dropped those between."""


@dataclass(frozen=True, slots=True)
class _Place:
    content: int
    which: int
    end: int


def written_tail(log: int, path: Path) -> Tail | None:
    """Read the end of the CRI log `log` (open at `path`), and of what it was rotated to. None where there is no line.

    What others have written, behind the lines or to a file beside the log, is passed over.
    """
    last: Written | None = None
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


def _run_in(lines: list[bytes], last: Written) -> tuple[list[int], bool]:
    """Hashes of the lines of the run, and whether no more are to be sought before these lines."""
    run: list[int] = []
    for line in reversed(lines):
        if line.startswith(last.prefix):
            run.insert(0, hash(line))
        elif _is_of(line, last.stream):
            return run, True  # the pieces of one line stand in one row within their stream
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


def find_position(files: Sequence[int], tail: Tail | None, *, of: Format, since: int) -> Position:
    """Find where to go on in Docker's open files of this format, oldest first; at least one.

    `since` is when the container was created, ns since the epoch: an older log under its name is another's.
    """
    if tail is None:
        return Position(0, 0)
    places = _places(files, tail.last, of)
    done = overlap(tail.run, [place.content for place in places])
    if done:
        return Position(places[done - 1].which, places[done - 1].end)
    return _first_newer(files, tail.last.time, of=of, since=since)


def overlap(written: Sequence[int], held: Sequence[int]) -> int:
    """Give how many of `held`, from its beginning on, are at the end of `written`.

    Both are parts of one sequence, that of all pieces of a line. `written` begins with the first piece; `held` may not,
    since Docker drops its oldest file.
    """
    for count in range(min(len(written), len(held)), 0, -1):
        if list(written[-count:]) == list(held[:count]):
            return count
    return 0


def _places(files: Sequence[int], last: Written, of: Format) -> list[_Place]:
    """Where the records of this time and stream are, in order."""
    marks = of.marks(last)
    found: list[_Place] = []
    for which in reversed(range(len(files))):
        for start, group in of.backwards(files[which]):
            here: list[_Place] = []
            complete = marks.stream in group
            if marks.time in group:
                lines = ((start + end, line) for end, line in of.each(group))
                here, complete = _places_in(lines, which=which, last=last)
            found = here + found
            if found and complete:
                return found
    return found


def _places_in(lines: Iterator[tuple[int, bytes]], *, which: int, last: Written) -> tuple[list[_Place], bool]:
    """Give the places among lines with the offsets behind them, and whether no more are to be sought before these."""
    here: list[_Place] = []
    older = False
    for end, line in lines:
        if line.startswith(last.prefix):
            here.append(_Place(hash(line[:-1]), which, end))
        elif _is_of(line, last.stream):
            older = older or not here
    return here, older


def _is_of(line: bytes, stream: str) -> bool:
    return line.split(b" ", 2)[1:2] == [stream.encode()]


def _first_newer(files: Sequence[int], time: str, *, of: Format, since: int) -> Position:
    """The first record after `time`, which is not there itself; the beginning when there is none after it.

    If the log were this container's, what Docker dropped would be older than all that is left.
    """
    known, oldest = ns_from_rfc3339(time), True
    for which, fd in enumerate(files):
        for offset, first in _forwards(fd, of):
            if ns_from_rfc3339(first) > known:
                return Position(which, offset, (time, first) if oldest and known >= since else None)
            oldest = False
    return Position(0, 0)


def _forwards(fd: int, of: Format) -> Iterator[tuple[int, str]]:
    """Offset and time of each record of a file."""
    offset = 0
    while whole := of.whole(data := os.pread(fd, CHUNK, offset)):
        start = 0
        for end, line in of.each(data[:whole]):
            yield offset + start, first_time(line)
            start = end
        offset += whole
