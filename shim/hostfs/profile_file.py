"""The file of a security profile on the host, read in parts that fit into a message of the helper process.

The path comes from the request and may hang on a dead volume: `shim.spec.host_calls` has this called in the helper
process. So this module imports little.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from shim.base.atomic_files import open_regular
from shim.domain.errors import FailedPrecondition, reason_of

PART = 64 << 10
"""Bytes. Most profiles are smaller and take one call."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the content of a file."""

    content: bytes
    """Of PART bytes; fewer at the end of the file."""
    version: tuple[int, int, int]
    """Inode, size and time of the last change of the file."""


def read_part(path: Path, *, offset: int, field: str) -> Part:
    """Return PART bytes of a regular file from `offset`. FailedPrecondition names the field of what cannot be read."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            file.seek(offset)
            return Part(file.read(PART), (status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise FailedPrecondition(f"{field}: seccomp profile {path}: {reason_of(error)}") from error
