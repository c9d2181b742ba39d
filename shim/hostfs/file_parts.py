"""Reads host files that may hang on a dead volume, in parts that fit into a packet of the helper process.

The helper process imports this module, so it imports little.
"""

import errno
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shim.base.atomic_files import open_regular

PART = 64 << 10
"""Maximum bytes per call. Most files are smaller and take a single call."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file."""

    content: bytes
    """PART bytes; fewer at the end of the file."""
    version: tuple[int, int, int]
    """Inode, size and modification time of the file."""


Call = Callable[[Callable[[], Part]], Part]
"""Calls a function in the helper process."""


def present(paths: Sequence[str]) -> list[str]:
    """Return the paths that exist. A path that cannot be inspected counts as existing."""
    return [path for path in paths if not _is_missing(path)]


def read_part(path: Path, *, offset: int) -> Part:
    """Return a part of a regular file from `offset`. Raise OSError."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        file.seek(offset)
        return Part(file.read(PART), (status.st_ino, status.st_size, status.st_mtime_ns))


def read_parts(path: Path, *, most: int, call: Call) -> bytes:
    """Read a regular file of at most `most` bytes. Raise OSError, and exceptions of `call`."""
    first = part = call(partial(read_part, path, offset=0))
    content = bytearray(part.content)
    while len(part.content) == PART and len(content) <= most:
        part = call(partial(read_part, path, offset=len(content)))
        if part.version != first.version:
            raise OSError(errno.EAGAIN, "changed while it was read; try again")
        content += part.content
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    return bytes(content)


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - a text
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
