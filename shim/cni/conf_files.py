"""Access to the files of the CNI configuration directory.

The functions run in the helper process for host paths (`shim.hostfs`), because the directory's volume may hang. This
module therefore imports little, and each result fits into a message of that process.
"""

import os
import stat
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


def has_links(directory: Path) -> bool:
    """Return whether a configuration file or a directory is a link, whose path may contain any other name.

    Only then is a change of another name relevant. Reading without need might meet a half-written file.
    """
    try:
        with os.scandir(directory) as entries:
            return any(entry.is_symlink() and (entry.name.endswith(SUFFIXES) or entry.is_dir()) for entry in entries)
    except OSError:  # the directory is gone, which causes another event
        return False


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
