"""Reading one small file of the kernel, as cheaply as Python can."""

import functools
import os
from collections.abc import Callable

_ONE_READ = 1 << 16
"""Bytes; no file that comes in one piece is as long."""
_LINKS_OF_A_LEAF = 2
_MAX_GROUPS = 1000
"""Groups of one container that are read: a process in it may make many."""


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
