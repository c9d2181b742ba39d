"""Whether a file of the host is a program; asked in the helper process, since its volume may hang."""

import os
from pathlib import Path


def is_executable(path: Path) -> bool:
    """Return whether there is a program; false in a directory that cannot be read, such as one of a dead NFS server."""
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False
