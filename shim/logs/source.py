"""Docker's log of one container, read once from a position to its end, through Docker's rotation.

When Docker's file is full it is renamed to `.1`, `.1` before it to `.2` and so on, the oldest removed, and then a new
one is made. A file is known by its inode: as long as it is open, the kernel reuses that inode for no other.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shim.logs.format import CHUNK

_TRIES = 8
_SAMPLE = 256
"""Bytes before a position: more than the end of a record with its time has."""

Identity = tuple[int, int]
"""Device and inode of a file."""
_Listed = dict[Identity, tuple[str, int]]
"""Name and size of each file of a log, oldest first."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a closed file. The kernel may reuse its inode for a new file, so some content is kept."""

    file: Identity
    offset: int
    sample: bytes

    @classmethod
    def at(cls, fd: int, offset: int) -> Self:
        return cls(_identity(os.fstat(fd)), offset, os.pread(fd, _SAMPLE, max(0, offset - _SAMPLE)))

    def is_in(self, path: str) -> bool:
        """Whether `path`, a file of the same inode, still has that content."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, len(self.sample), max(0, self.offset - _SAMPLE)) == self.sample
        finally:
            os.close(fd)


class Source:
    """The read position in Docker's files. Raises OSError."""

    def __init__(self, path: Path, *, whole: Callable[[bytes], int]) -> None:
        """Open nothing yet. `whole` is that of `shim.logs.format.Format`."""
        self.path = path
        self._whole = whole
        self.dropped = False
        """Docker removed files that had not been read; reset by the caller that reports it."""
        self._fd = -1
        self._offset = 0
        self._left_at: _Place | None = None
        """Position of the last close."""

    def seek(self, fd: int, offset: int) -> None:
        """Continue at `offset` of an open file of this log. The source owns and closes it from now on."""
        self.close()
        self._fd, self._offset = fd, offset

    def read(self) -> bytes:
        """Return whole records from the position on; nothing at the current end.

        At most CHUNK bytes: the share of one container before the next one's turn.
        """
        while True:
            if self._fd < 0 and not self._open_oldest():
                return b""
            records = self._whole_records()
            if records or not self._is_rotated():
                return records
            # Docker closes a file before it creates the next one, so this one is complete now.
            records = self._whole_records()
            if records or not self._open_successor():
                return records

    def advance(self, count: int) -> None:
        """Move the position by `count` bytes that `read` returned."""
        self._offset += count

    def behind(self) -> int:
        """Return how many bytes are unread: the rest of the current file, and all files after it.

        A closed source counts from where it was closed, or all files if it was never open. 0 if the directory cannot
        be read.
        """
        with suppress(OSError):
            listed = {_identity(status): (name, status.st_size) for name, status in _list_files(self.path)}
            if self._fd < 0:
                return _left_since(self._left_at, listed)
            held = os.fstat(self._fd)
            return max(0, held.st_size - self._offset) + _sizes_after(_identity(held), listed)
        return 0

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                self._left_at = _Place.at(fd, self._offset)
            except OSError:  # a bad disk must not keep the file open
                self._left_at = None
            finally:
                os.close(fd)

    def _whole_records(self) -> bytes:
        data = os.pread(self._fd, CHUNK, self._offset)
        if not data and os.fstat(self._fd).st_size < self._offset:
            # The file was truncated in place (`> x-json.log`); Docker appends, so it starts at 0 again.
            self._offset = 0
        return data[: self._whole(data)]

    def _is_rotated(self) -> bool:
        try:
            return _identity(self.path.stat()) != _identity(os.fstat(self._fd))
        except FileNotFoundError:
            return False  # between Docker's rename and its new file, or removed with the container

    def _open_oldest(self) -> bool:
        found = generations(self.path)
        if not found:
            return False
        self._take(found, 0)
        return True

    def _open_successor(self) -> bool:
        held = _identity(os.fstat(self._fd))
        found = generations(self.path)
        known = [_identity(os.fstat(fd)) for fd in found]
        follows = known.index(held) + 1 if held in known else 0
        if follows >= len(found):
            close_all(found)
            return False
        self.dropped = self.dropped or follows == 0
        self._take(found, follows)
        return True

    def _take(self, found: list[int], which: int) -> None:
        self.seek(found[which], 0)
        close_all(fd for position, fd in enumerate(found) if position != which)


def _left_since(place: _Place | None, listed: _Listed) -> int:
    if place is None or place.file not in listed or not place.is_in(listed[place.file][0]):
        return sum(size for _, size in listed.values())
    return max(0, listed[place.file][1] - place.offset) + _sizes_after(place.file, listed)


def _sizes_after(file: Identity, listed: _Listed) -> int:
    """Return the size of all files that are newer than `file`; of all files if it is not listed any more."""
    newer = list(listed).index(file) + 1 if file in listed else 0
    return sum(size for _, size in list(listed.values())[newer:])


def generations(path: Path) -> list[int]:
    """Open all files of a log, oldest first. Return nothing if there is none; raise OSError."""
    for _ in range(_TRIES):
        opened = _open_all(path)
        # Docker may rotate in between: a result is right if it is the same before and after.
        if [_identity(os.fstat(fd)) for fd in opened] == [_identity(status) for _, status in _list_files(path)]:
            return opened
        close_all(opened)
    return _open_all(path)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _open_all(path: Path) -> list[int]:
    opened = []
    for name, _ in _list_files(path):
        with suppress(FileNotFoundError):
            opened.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
    return opened


def _list_files(path: Path) -> list[tuple[str, os.stat_result]]:
    """Return path and status of the existing files of a log, oldest first."""
    numbered = []
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        for entry in entries:
            suffix = entry.name.removeprefix(path.name)
            if entry.name == path.name or (suffix != entry.name and suffix[1:].isdecimal()):
                with suppress(FileNotFoundError):
                    numbered.append((int(suffix[1:] or 0), entry.path, entry.stat()))
    return [(name, status) for _, name, status in sorted(numbered, key=lambda one: one[0], reverse=True)]


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
