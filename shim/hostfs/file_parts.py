"""Files on the host that may hang on a dead volume, read by the helper process in parts that fit into its messages.

The helper process has this module loaded, so it imports little.
"""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shim.base.atomic_files import open_regular

PART = 64 << 10
"""Bytes. Most files are smaller and take one call."""

Call = Callable[[Callable[[], bytes]], bytes]
"""Calls a function in the helper process."""


def read_part(path: Path, *, offset: int) -> bytes:
    """Return PART bytes of a regular file from `offset`, fewer at its end. Raise OSError."""
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(PART)


def read_parts(path: Path, *, most: int, call: Call) -> bytes:
    """Read a regular file of at most `most` bytes. Raise OSError, and what `call` raises."""
    content = bytearray()
    while True:
        part = call(partial(read_part, path, offset=len(content)))
        content += part
        if len(content) > most:
            raise OSError(errno.EFBIG, f"more than {most} bytes")
        if len(part) < PART:
            return bytes(content)
