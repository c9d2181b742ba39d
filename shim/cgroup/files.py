"""Reading one small file of the kernel, as cheaply as Python can."""

import functools
import os
import resource
from collections.abc import Callable
from typing import ClassVar

_ONE_READ = 1 << 16
"""Bytes; no file that comes in one piece is as long."""
_LINKS_OF_A_LEAF = 2
_MAX_GROUPS = 1000
"""Groups of one container that are read: a process in it may make many."""
MAX_KEPT_OPEN = 8192
"""Files that all `OpenFiles` together keep open; further ones are opened for each read."""
_SHARE_KEPT_OPEN = 4
"""A quarter of the descriptors the process may have, if that is fewer: the rest is for clients and containers."""


def read(path: str) -> bytes | None:
    """Return the content of a file that comes in one piece, None when it is not there or went away while it was read.

    Three system calls: pathlib and file objects would take several times as long, for thousands of files per answer.
    """
    return _read(path, os.read)


def read_list(path: str) -> bytes | None:
    """Return the content of a file that is a list of any length, None as above.

    The kernel hands such lists out a page at a time, however much is asked for: of `cgroup.procs` some 800 processes.
    """
    return _read(path, _all_pieces)


class OpenFiles:
    """Files that are read again and again, by path. Each is opened once, and closed with this object. Thread-safe.

    Reading an open file is one system call, which takes a fifth of opening it by its path each time. It keeps no group
    alive: one can be removed meanwhile, and what is open of it cannot be read any more.
    """

    def __init__(self) -> None:
        self._open: dict[str, _OpenFile] = {}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file that comes in one piece, or None, as `read` by itself."""
        file = self._open.get(path)
        if file is None:
            if len(_OpenFile.descriptors) >= _most_kept_open():
                return read(path)
            file = self._opened(path)
        if file is None:
            return None
        try:
            return os.pread(file.descriptor, _ONE_READ, 0)
        except OSError:  # ENODEV: the group has been removed since, and may have been made again
            self._open.pop(path, None)
            return read(path)

    def _opened(self, path: str) -> "_OpenFile | None":
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        # Of two threads that open it at the same time one uses the other's: its own is closed with the reference.
        return self._open.setdefault(path, _OpenFile(descriptor))


class _OpenFile:
    """A descriptor that is closed with the last reference: no thread reads from a number that is used again."""

    descriptors: ClassVar[set[int]] = set()
    """All that are open. Changed by single operations that need no lock: `__del__` must not wait for one."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.descriptors.add(descriptor)

    def __del__(self) -> None:
        self.descriptors.discard(self.descriptor)  # first: the number is another file's once it is closed
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
    except OSError:  # ENODEV: the group has been removed since
        return None
    finally:
        os.close(descriptor)


def _all_pieces(descriptor: int, size: int) -> bytes:
    return b"".join(iter(functools.partial(os.read, descriptor, size), b""))


def with_those_below(directory: str) -> list[str]:
    """Return a group's directory, and those of the groups below it, at most _MAX_GROUPS."""
    found = [directory]
    for each in found:
        if len(found) >= _MAX_GROUPS:
            break
        if _is_leaf(each):
            continue
        below = (f"{each}/{name}" for name in names(each))
        found.extend(path for path in below if os.path.isdir(path))  # noqa: PTH112 - a text
    return found


def _is_leaf(directory: str) -> bool:
    """Return whether no group is below: a directory has a link of itself, one of its name, and one from each below."""
    try:
        return os.stat(directory).st_nlink == _LINKS_OF_A_LEAF  # noqa: PTH116 - a text
    except OSError:
        return True


def names(directory: str) -> list[str]:
    """List a directory, empty when it is not there."""
    try:
        return os.listdir(directory)  # noqa: PTH208 - names, not paths
    except OSError:
        return []
