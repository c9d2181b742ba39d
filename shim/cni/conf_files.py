"""The files of the directory of CNI configurations, asked for in the helper process, since its volume may hang.

So this module imports little. What it returns fits into one message of that process.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

from shim.base import atomic_files
from shim.base.atomic_files import failing_as, read_regular, write_atomically

SUFFIXES = (".conflist", ".conf", ".json")
DROP_IN_SUFFIX = ".conf"
"""Of a plugin in the directory that has the name of its network, as the reference library has it."""

_NAMES = 64 << 10
"""Bytes of names in one answer. Those of most directories take one call."""


def file_names(directory: Path, *, after: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the names of files with these suffixes in order, of those behind `after` as many as fit. Raise OSError."""
    names = sorted(
        path.name
        for path in directory.iterdir()
        if path.name > after and path.name.endswith(suffixes) and not path.is_dir()
    )
    size, found = 0, list[str]()
    for name in names:
        size += len(os.fsencode(name))
        if size > _NAMES:
            break
        found.append(name)
    return found


def reach(directory: Path) -> None:
    """Return once the directory, and each above it, has answered."""
    for path in (*reversed(directory.parents), directory):
        try:
            path.stat()
            if path == directory:
                os.listdir(path)  # noqa: PTH208 - of names alone
        except OSError:  # not there, or not for us: that is an answer
            return


def has_links(directory: Path) -> bool:
    """Return whether a configuration file or a directory is a link, which may lead to or through any other name.

    Only then do other names count: a reading more may meet a file that is just being written.
    """
    try:
        with os.scandir(directory) as entries:
            return any(entry.is_symlink() and (entry.name.endswith(SUFFIXES) or entry.is_dir()) for entry in entries)
    except OSError:  # it has gone, which is an event of its own
        return False


def is_complete(path: Path) -> bool:
    """Return whether a new name is a link. The end of writing a file is an event of its own."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return not stat.S_ISREG(status.st_mode) or status.st_nlink > 1


def write_file(path: Path, content: bytes) -> bool:
    """Replace a file, and make its directory; return whether it had another content. Raise ShimError."""
    with suppress(OSError):
        if read_regular(path, most=len(content)) == content:
            return False
    with failing_as(f"create the directory {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return True


def remove_file(path: Path) -> None:
    """Remove a file; nothing there is fine. Raise ShimError."""
    atomic_files.remove_file(path)
