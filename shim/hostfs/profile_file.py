"""Reads a security profile on the host, in parts that fit into the helper process's messages.

The path comes from the request and may hang on a dead volume, so `shim.spec.host_calls` calls this in the helper
process. This module imports little for that reason.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from shim.base.atomic_files import open_regular
from shim.domain.errors import FailedPrecondition, reason_of

PART = 64 << 10
"""Bytes per call. Most profiles are smaller and take a single call."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file."""

    content: bytes
    """PART bytes; fewer at the end of the file."""
    version: tuple[int, int, int]
    """Inode, size and modification time of the file."""


def read_part(path: Path, *, offset: int, field: str) -> Part:
    """Return PART bytes of a regular file from `offset`. Raise FailedPrecondition with the name of the field."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            file.seek(offset)
            return Part(file.read(PART), (status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise FailedPrecondition(f"{field}: seccomp profile {path}: {reason_of(error)}") from error
