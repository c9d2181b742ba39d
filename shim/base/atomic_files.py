"""Files that survive a crash: each holds its whole old or its whole new content.

The order is the one POSIX asks for: write a new file, fsync it, rename it over the old one, fsync the
directory. No lock is taken here; two files are written, and wait for the disk, side by side.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

from shim.domain.errors import InvalidArgument, ResourceExhausted, ShimError, reason_of

MAX_PATH_BYTES = 4095
"""Limit of the kernel (`PATH_MAX`, which counts the NUL at the end)."""
MAX_NAME_BYTES = 255
"""Limit of the kernel (`NAME_MAX`)."""

Sync = Literal["name", "content", "nothing"]
"""How much of a write waits for the disk; what a crash of the process leaves does not depend on it."""

_TEMPORARY = ".tmp"
_MODE = 0o600
_EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def check_path_length(path: str, *, field: str) -> None:
    """Raise InvalidArgument unless the kernel takes a path, and each name in it."""
    size = len(path.encode())
    if size > MAX_PATH_BYTES:
        raise InvalidArgument(f"{field} has {size} bytes, at most {MAX_PATH_BYTES} are allowed")
    longest = max(len(name.encode()) for name in path.split("/"))
    if longest > MAX_NAME_BYTES:
        raise InvalidArgument(f"{field} holds a name of {longest} bytes, at most {MAX_NAME_BYTES} are allowed")


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn an OSError of the block into an error of the domain: `what`, a colon and the system's reason.

    ResourceExhausted where space or descriptors ran out, else ShimError. `what` names the file.
    """
    try:
        yield
    except OSError as error:
        kind = ResourceExhausted if error.errno in _EXHAUSTED else ShimError
        raise kind(f"{what}: {reason_of(error)}") from error


def ensure_private_directory(path: Path) -> None:
    """Make `path` and what is missing above it; `path` itself is 0700 afterwards, also if others made it."""
    with failing_as(f"create the directory {path}"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o777 != 0o700:
            path.chmod(0o700)


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file for the block. Raise OSError.

    What is not a regular file could block the open, or never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_regular(path: Path, *, most: int) -> bytes:
    """Read a regular file of at most `most` bytes. Raise OSError."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    return content


def write_atomically(path: Path, content: bytes, *, sync: Sync = "name") -> None:
    """Replace `path` by `content` atomically, 0600; on an error the old file is still there, whole.

    A power loss afterwards may leave, by `sync`: with `name` the new content, with `content` the old or the new
    one, with `nothing` perhaps an empty file. When the last fsync fails, the new content is in place but may be lost
    with the power: an error too.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")
    with failing_as(f"write {path}"):
        try:
            _write_new(temporary, content, sync=sync != "nothing")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if sync == "name":
            sync_directory(path.parent)


def remove_file(path: Path) -> None:
    """Remove `path`; nothing there is fine, and so is a missing directory. A power loss may bring it back."""
    with failing_as(f"remove {path}"), suppress(FileNotFoundError):
        path.unlink(missing_ok=True)


def remove_temporaries(directory: Path) -> None:
    """Remove what a crash in `write_atomically` left in `directory`; no write may be under way there."""
    with failing_as(f"remove leftover files in {directory}"):
        for path in directory.glob(f".*{_TEMPORARY}"):
            path.unlink(missing_ok=True)


def is_temporary(name: str, *, target: str) -> bool:
    """Return whether `name` is a leftover of a crash in `write_atomically` of the file name `target`."""
    return name.startswith(f".{target}.") and name.endswith(_TEMPORARY)


def sync_directory(path: Path) -> None:
    """Make the names in `path` durable. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(path: Path, content: bytes, *, sync: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, _MODE), "wb", buffering=0) as file:
        os.fchmod(file.fileno(), _MODE)  # whatever the umask
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        if sync:
            os.fsync(file.fileno())
