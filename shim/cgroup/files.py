"""Reads small kernel files with as few system calls as Python allows."""

import functools
import os
import resource
from collections.abc import Callable
from typing import ClassVar

_ONE_READ = 1 << 16
"""Bytes; longer than any file that the kernel returns in one piece."""
_LINKS_OF_A_LEAF = 2
_MAX_GROUPS = 1000
"""Groups that are read for one container: a process in a container can create any number."""
MAX_KEPT_OPEN = 8192
"""Files that all `OpenFiles` objects together keep open; other files are opened for each read."""
_SHARE_KEPT_OPEN = 4
"""`OpenFiles` take at most a quarter of the descriptor limit: clients and containers need the rest."""


def read(path: str) -> bytes | None:
    """Return the content of a file that comes in one piece; None if it is missing or disappears during the read.

    Takes three system calls: an answer reads thousands of files, and file objects take several times as long.
    """
    return _read(path, os.read)


def read_list(path: str) -> bytes | None:
    """Return the content of a file that lists any number of items; None as `read` does.

    The kernel returns such a list a page at a time, whatever the size of the read: `cgroup.procs` about 800 processes.
    """
    return _read(path, _all_pieces)


class OpenFiles:
    """Keeps files open that are read repeatedly, by path, and closes them when it is freed. Thread-safe.

    Reading an open file takes a fifth of the time of opening, reading and closing it. An open file does not keep its
    group alive: the group can be removed, and reads of the file fail from then on.
    """

    def __init__(self) -> None:
        self._open: dict[str, _OpenFile] = {}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file that comes in one piece; None if it is missing."""
        file = self._open.get(path)
        if file is None:
            if len(_OpenFile.descriptors) >= _most_kept_open():
                return read(path)
            file = self._opened(path)
        if file is None:
            return None
        try:
            return os.pread(file.descriptor, _ONE_READ, 0)
        except OSError:  # ENODEV: the group was removed, and may have been created again
            self._open.pop(path, None)
            return read(path)

    def _opened(self, path: str) -> "_OpenFile | None":
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        # When two threads open the file at the same time, the first descriptor is kept and the second is closed.
        return self._open.setdefault(path, _OpenFile(descriptor))


class _OpenFile:
    """A descriptor that is closed with its last reference, so that no thread reads from a reused number."""

    descriptors: ClassVar[set[int]] = set()
    """All open descriptors. Changed by atomic operations, since `__del__` must not wait for a lock."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.descriptors.add(descriptor)

    def __del__(self) -> None:
        self.descriptors.discard(self.descriptor)  # before the close, after which the number may be reused
        os.close(self.descriptor)


def _most_kept_open() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_KEPT_OPEN if soft == resource.RLIM_INFINITY else min(MAX_KEPT_OPEN, soft // _SHARE_KEPT_OPEN)


def _read(path: str, reading: Callable[[int, int], bytes]) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return reading(descriptor, _ONE_READ)
    except OSError:  # ENODEV: the group was removed after the open
        return None
    finally:
        os.close(descriptor)


def _all_pieces(descriptor: int, size: int) -> bytes:
    return b"".join(iter(functools.partial(os.read, descriptor, size), b""))


def with_descendants(directory: str) -> list[str]:
    """Return the directories of a group and of its descendants, at most _MAX_GROUPS."""
    found = [directory]
    for each in found:
        if len(found) >= _MAX_GROUPS:
            break
        if _is_leaf(each):
            continue
        entries = (f"{each}/{name}" for name in names(each))
        found.extend(path for path in entries if os.path.isdir(path))  # noqa: PTH112 - a text
    return found


def _is_leaf(directory: str) -> bool:
    """Return whether a group has no children: each child directory adds a link to the two that every directory has."""
    try:
        return os.stat(directory).st_nlink == _LINKS_OF_A_LEAF  # noqa: PTH116 - a text
    except OSError:
        return True


def names(directory: str) -> list[str]:
    """List a directory; empty if it is missing."""
    try:
        return os.listdir(directory)  # noqa: PTH208 - names, not paths
    except OSError:
        return []
