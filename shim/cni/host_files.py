"""Access to CNI's files on the host: the configuration directory and the plugins' programs.

The functions run in the helper process for host paths (`shim.hostfs`), because a volume may hang. This module therefore
imports little, and each result fits into a message of that process.
"""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shim.base import atomic_files
from shim.base.atomic_files import failing_as, read_regular, write_atomically

SUFFIXES = (".conflist", ".conf", ".json")
DROP_IN_SUFFIX = ".conf"
"""Suffix of a drop-in plugin, in a directory with the name of its network; as in the reference library."""

_NAMES = 64 << 10
"""Most bytes of names in a result, enough for most directories."""


def file_names(directory: Path, *, after: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return sorted names of files with these suffixes: those after the name `after`, as many as fit. Raise OSError."""
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


def probe_directory(directory: Path) -> None:
    """Access the directory and all its parents. Return once all of them have answered, with or without an error."""
    for path in (*reversed(directory.parents), directory):
        try:
            path.stat()
            if path == directory:
                os.listdir(path)  # noqa: PTH208 - only names are needed
        except OSError:  # the directory is missing or forbidden, so its volume has answered
            return


def is_complete(path: Path) -> bool:
    """Return whether a new name is complete: a link or missing. A regular file is complete at its CLOSE_WRITE event."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return True
    return not stat.S_ISREG(status.st_mode) or status.st_nlink > 1


def write_file(path: Path, content: bytes) -> bool:
    """Write a file, and create its directory. Return False if the file had this content already. Raise ShimError."""
    with suppress(OSError):
        if read_regular(path, most=len(content)) == content:
            return False
    with failing_as(f"create the directory {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return True


def remove_file(path: Path) -> None:
    """Remove a file, if it exists. Raise ShimError."""
    atomic_files.remove_file(path)


def executables(directory: Path, names: Sequence[str]) -> list[str]:
    """Return the names that are executable files in a directory; none if the directory is unreadable."""
    return [name for name in names if _is_executable(directory / name)]


def _is_executable(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False
