"""Reads host files that may hang on a dead volume, in parts that fit into the helper process's messages.

The helper process imports this module, so it imports little.
"""

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from shim.base.atomic_files import open_regular

PART = 64 << 10
"""Bytes per call. Most files are smaller and take a single call."""

Call = Callable[[Callable[[], bytes]], bytes]
"""Calls a function in the helper process."""


def present(paths: Sequence[str]) -> list[str]:
    """Return the paths that exist, including paths that cannot be inspected."""
    return [path for path in paths if not _is_missing(path)]


def read_part(path: Path, *, offset: int) -> bytes:
    """Return PART bytes of a regular file from `offset`, fewer at its end. Raise OSError."""
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(PART)


def read_parts(path: Path, *, most: int, call: Call) -> bytes:
    """Read a regular file of at most `most` bytes. Raise OSError, and exceptions of `call`."""
    content = bytearray()
    while True:
        part = call(partial(read_part, path, offset=len(content)))
        content += part
        if len(content) > most:
            raise OSError(errno.EFBIG, f"more than {most} bytes")
        if len(part) < PART:
            return bytes(content)


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - a text
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
