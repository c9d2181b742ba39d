"""Reads Docker's log of a container from a position on, across Docker's rotation.

When Docker's file is full, Docker removes the oldest file, renames `.1` to `.2` and so on, renames the full file to
`.1`, and creates a new file. A file is identified by its inode, which the kernel does not reuse while the file is open.

Each read opens all new files, even if earlier files are still unread, because an open file stays readable after Docker
has removed it. So if a container writes faster than its output is copied, nothing is lost within the limits below.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shim.logs.format import CHUNK

MAX_WAITING_FILES = 64
"""Maximum open files that wait to be read."""
MAX_WAITING_BYTES = 256 << 20
"""If the waiting files have this size, no more files are opened: open files may exceed Docker's limit of disk space."""
_TRIES = 8
_SAMPLE = 256
"""Bytes before a position that identify its file; they include the time of the last record."""

Identity = tuple[int, int]
"""Device and inode of a file."""
_Listed = dict[Identity, tuple[str, int]]
"""Name and size of each file of a log, oldest first."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in a closed file. Its inode may be reused, so the bytes before the position are compared too."""

    file: Identity
    offset: int
    sample: bytes

    @classmethod
    def at(cls, fd: int, offset: int) -> Self:
        return cls(_identity(os.fstat(fd)), offset, os.pread(fd, _SAMPLE, max(0, offset - _SAMPLE)))

    def is_in(self, path: str) -> bool:
        """Return whether a file with the same inode has the same bytes before the position."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, len(self.sample), max(0, self.offset - _SAMPLE)) == self.sample
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An open file that waits until the earlier files are read."""

    fd: int
    after_gap: bool
    """Whether Docker removed files between the previous file and this file."""


class Source:
    """The read position in Docker's files. The methods raise OSError."""

    def __init__(self, path: Path, *, whole: Callable[[bytes], int]) -> None:
        """Open nothing yet. `whole` is `shim.logs.format.Format.whole`."""
        self.path = path
        self._whole = whole
        self.dropped = False
        """Whether Docker removed unread files. The caller reports this and resets it."""
        self._fd = -1
        self._offset = 0
        self._waiting: deque[_Waiting] = deque()
        self._left_at: _Place | None = None
        """The position at the last `close`."""

    def seek(self, fds: Sequence[int], offset: int) -> None:
        """Take over `fds`, consecutive open files of this log, and continue at `offset` of the first."""
        self.close()
        self._fd, self._offset = fds[0], offset
        self._waiting.extend(_Waiting(fd, after_gap=False) for fd in fds[1:])

    def read(self) -> bytes:
        """Return whole records from the position on, at most CHUNK bytes; b"" at the current end."""
        while True:
            if self._fd < 0 and not self._open_oldest():
                return b""
            self._open_newer()
            # Docker closes a file before it creates the next file, so a file with a successor is complete.
            records = self._whole_records()
            if records or not self._waiting:
                return records
            self._continue_in_next()

    def advance(self, count: int) -> None:
        """Move the position by `count` bytes, after `read` has returned them."""
        self._offset += count

    def behind(self) -> int:
        """Return the number of unread bytes in the current file and all later files, including removed open files.

        A closed source counts from its position at `close`, or all files if it was never open. If the directory cannot
        be read, return 0.
        """
        with suppress(OSError):
            listed = {_identity(status): (name, status.st_size) for name, status in _list_files(self.path)}
            if self._fd < 0:
                return _left_since(self._left_at, listed)
            current = max(0, os.fstat(self._fd).st_size - self._offset)
            return current + self._waiting_bytes() + _sizes_after(self._newest(), listed)
        return 0

    def close(self) -> None:
        """Close all files. Idempotent."""
        close_all(waiting.fd for waiting in self._waiting)
        self._waiting.clear()
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                self._left_at = _Place.at(fd, self._offset)
            except OSError:  # an I/O error must not keep the file open
                self._left_at = None
            finally:
                os.close(fd)

    def _whole_records(self) -> bytes:
        data = os.pread(self._fd, CHUNK, self._offset)
        if not data and os.fstat(self._fd).st_size < self._offset:
            # Somebody has truncated the file in place (`> x-json.log`). Docker appends, so new records start at 0.
            self._offset = 0
            data = os.pread(self._fd, CHUNK, 0)
        return data[: self._whole(data)]

    def _is_rotated(self) -> bool:
        try:
            return _identity(self.path.stat()) != self._newest()
        except FileNotFoundError:
            return False  # Docker has renamed the file and not yet created the next, or removed the container

    def _open_oldest(self) -> bool:
        found = generations(self.path)
        if not found:
            return False
        self.seek(found, 0)
        return True

    def _open_newer(self) -> None:
        """Open the files that Docker has created after the newest open file, up to the limits."""
        if not self._is_rotated() or self._is_full():
            return
        newest = self._newest()
        found = generations(self.path)
        known = [_identity(os.fstat(fd)) for fd in found]
        newer = known.index(newest) + 1 if newest in known else 0
        for position, fd in enumerate(found):
            if position < newer or self._is_full():
                os.close(fd)
            else:
                self._waiting.append(_Waiting(fd, after_gap=position == 0))

    def _continue_in_next(self) -> None:
        waiting = self._waiting.popleft()
        os.close(self._fd)
        self._fd, self._offset = waiting.fd, 0
        self.dropped = self.dropped or waiting.after_gap

    def _newest(self) -> Identity:
        return _identity(os.fstat(self._waiting[-1].fd if self._waiting else self._fd))

    def _is_full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING_FILES or self._waiting_bytes() >= MAX_WAITING_BYTES

    def _waiting_bytes(self) -> int:
        return sum(os.fstat(waiting.fd).st_size for waiting in self._waiting)


def _left_since(place: _Place | None, listed: _Listed) -> int:
    if place is None or place.file not in listed or not place.is_in(listed[place.file][0]):
        return sum(size for _, size in listed.values())
    return max(0, listed[place.file][1] - place.offset) + _sizes_after(place.file, listed)


def _sizes_after(file: Identity, listed: _Listed) -> int:
    """Return the total size of the files newer than `file`, or of all files if it is not listed."""
    newer = list(listed).index(file) + 1 if file in listed else 0
    return sum(size for _, size in list(listed.values())[newer:])


def generations(path: Path) -> list[int]:
    """Open all files of a log and return their descriptors, oldest first. Raise OSError."""
    for _ in range(_TRIES):
        opened = _open_all(path)
        try:
            listed = [_identity(status) for _, status in _list_files(path)]
        except BaseException:
            close_all(opened)
            raise
        # Docker may rotate meanwhile. The result is consistent if a later listing is the same.
        if [_identity(os.fstat(fd)) for fd in opened] == listed:
            return opened
        close_all(opened)
    return _open_all(path)


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


def _open_all(path: Path) -> list[int]:
    opened: list[int] = []
    try:
        for name, _ in _list_files(path):
            with suppress(FileNotFoundError):
                opened.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
    except BaseException:
        close_all(opened)
        raise
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
    return [(name, status) for _, name, status in sorted(numbered, key=lambda each: each[0], reverse=True)]


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
