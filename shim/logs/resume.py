"""Where in Docker's files to go on, found from what the CRI log holds already: nothing else is kept anywhere.

The last line that was written is sought by its time, stream and content. All pieces of one long line have the same
time, and often the same content, so it is the run of them that is matched. That run may lie in two CRI logs, since
the kubelet rotates, and in two files of Docker's.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shim.logs.decode import decode, decode_line
from shim.logs.encode import Written, encode, read_head
from shim.logs.lines import BLOCK, last_lines_compressed, lines_backwards
from shim.logs.sink import COMPRESSED, rotated_logs
from shim.times import ns_from_rfc3339


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
    """Read the end of the CRI log `log` (open at `path`), and of what it was rotated to. None for an empty one."""
    last: Written | None = None
    run: list[int] = []
    for group in _groups(log, path):
        lines = group.split(b"\n")[:-1]
        last = last or read_head(lines[-1])
        if last is None:
            return None
        here, complete = _run_in(lines, last)
        run = here + run
        if complete:
            break
    return None if last is None else Tail(last, tuple(run))


def _run_in(lines: list[bytes], last: Written) -> tuple[list[int], bool]:
    """Hashes of the lines of the run, and whether no more are to be sought before these lines."""
    stream = f" {last.stream} ".encode()
    run: list[int] = []
    for line in reversed(lines):
        if line.startswith(last.prefix):
            run.insert(0, hash(line))
        elif stream in line[:64]:
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


def find_position(files: Sequence[int], tail: Tail | None, *, since: int) -> Position:
    """Find where to go on in Docker's open files, oldest first; at least one.

    `since` is when the container was created, ns since the epoch: an older log under its name is another's.
    """
    if tail is None:
        return Position(0, 0)
    places = _places(files, tail.last)
    done = overlap(tail.run, [place.content for place in places])
    if done:
        return Position(places[done - 1].which, places[done - 1].end)
    return _first_newer(files, tail.last.time, since=since)


def overlap(written: Sequence[int], held: Sequence[int]) -> int:
    """Give how many of `held`, from its beginning on, are at the end of `written`.

    Both are parts of one sequence, that of all pieces of a line. `written` begins with the first piece; `held` may not,
    since Docker drops its oldest file.
    """
    for count in range(min(len(written), len(held)), 0, -1):
        if list(written[-count:]) == list(held[:count]):
            return count
    return 0


def _places(files: Sequence[int], last: Written) -> list[_Place]:
    """Where the records of this time and stream are, in order."""
    found: list[_Place] = []
    for which in reversed(range(len(files))):
        for start, group in lines_backwards(files[which]):
            here, complete = _places_in(start, group, which=which, last=last)
            found = here + found
            if found and complete:
                return found
    return found


def _places_in(start: int, group: bytes, *, which: int, last: Written) -> tuple[list[_Place], bool]:
    """Give the places in a group of lines, and whether no more are to be sought before it."""
    time, stream = f'"time":"{last.time}"'.encode(), f'"stream":"{last.stream}"'.encode()
    if time not in group:
        return [], stream in group
    here: list[_Place] = []
    end, older = start, False
    for line in group.split(b"\n")[:-1]:
        end += len(line) + 1
        if stream not in line:
            continue
        if time not in line:
            older = older or not here
        elif (record := decode_line(line)) is not None:
            here.append(_Place(hash(encode([record])[:-1]), which, end))
    return here, older


def _first_newer(files: Sequence[int], time: str, *, since: int) -> Position:
    """The first record after `time`, which is not there itself; the beginning when there is none after it.

    If the log were this container's, what Docker dropped would be older than all that is left.
    """
    known, oldest = ns_from_rfc3339(time), True
    for which, fd in enumerate(files):
        for offset, first in _forwards(fd):
            if ns_from_rfc3339(first) > known:
                return Position(which, offset, (time, first) if oldest and known >= since else None)
            oldest = False
    return Position(0, 0)


def _forwards(fd: int) -> Iterator[tuple[int, str]]:
    """Offset and time of each record of a file."""
    offset = 0
    while data := os.pread(fd, BLOCK, offset):
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return
        for line in whole.split(b"\n")[:-1]:
            for record in decode(line + b"\n").records:
                yield offset, record.time
            offset += len(line) + 1
