"""Removes a copied group as the kernel does: open files cannot be read any more."""

import shutil
from pathlib import Path


def remove_group(directory: Path) -> None:
    """Remove a directory tree of control groups. Its open files become empty; the kernel's would answer ENODEV."""
    for path in directory.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    shutil.rmtree(directory)
