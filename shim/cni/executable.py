"""Which files of the host are programs; asked in the helper process, since their volume may hang."""

import os
from collections.abc import Sequence
from pathlib import Path


def executables(directory: Path, names: Sequence[str]) -> list[str]:
    """Return those of the names that are programs in a directory.

    None in a directory that cannot be read, such as one of a dead NFS server.
    """
    return [name for name in names if _is_executable(directory / name)]


def _is_executable(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False
