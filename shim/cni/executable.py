"""Search for executable files. It runs in the helper process for host paths, because a volume may hang."""

import os
from collections.abc import Sequence
from pathlib import Path


def executables(directory: Path, names: Sequence[str]) -> list[str]:
    """Return the names that are executable files in a directory; none if the directory is unreadable."""
    return [name for name in names if _is_executable(directory / name)]


def _is_executable(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False
