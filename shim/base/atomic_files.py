"""Atomic file writes: after a crash a file holds either its whole old content or its whole new content.

A write follows the order that POSIX requires: write a new file, fsync it, rename it over the old file, fsync the
directory. This module takes no lock, so several files can be written at the same time.
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
"""How much of a write is flushed to disk. It matters for a power loss, not for a crash of the process."""

_TEMPORARY = ".tmp"
_MODE = 0o600
_EXHAUSTED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def check_path_length(path: str, *, field: str) -> None:
    """Raise InvalidArgument if `path`, or a name in it, is longer than the kernel allows."""
    size = len(path.encode())
    if size > MAX_PATH_BYTES:
        raise InvalidArgument(f"{field} has {size} bytes, at most {MAX_PATH_BYTES} are allowed")
    longest = max(len(name.encode()) for name in path.split("/"))
    if longest > MAX_NAME_BYTES:
        raise InvalidArgument(f"{field} holds a name of {longest} bytes, at most {MAX_NAME_BYTES} are allowed")


@contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Turn an OSError of the block into a ShimError with the text "`what`: <the system's reason>".

    The error is ResourceExhausted if space, memory or descriptors ran out. `what` names the operation and the file.
    """
    try:
        yield
    except OSError as error:
        kind = ResourceExhausted if error.errno in _EXHAUSTED else ShimError
        raise kind(f"{what}: {reason_of(error)}") from error


def ensure_private_directory(path: Path) -> None:
    """Create `path` and its missing parents, and set the mode of `path` to 0700 even if it existed before."""
    with failing_as(f"create the directory {path}"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.stat().st_mode & 0o777 != 0o700:
            path.chmod(0o700)


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file for the block. Raise OSError for any other kind of file.

    Opening a FIFO could block, and a device may never end.
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
    """Read a regular file. Raise OSError if it is larger than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes")
    return content


def write_atomically(path: Path, content: bytes, *, sync: Sync = "name") -> None:
    """Replace `path` by a file with `content` and mode 0600 atomically. Raise ShimError.

    `sync` decides which content the file may have after a power loss: `name` the new content, `content` the old or the
    new content, `nothing` perhaps none. On an error the old file is intact, except when the fsync of the directory
    fails: then the new content is in place, but a power loss may bring the old content back.
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
    """Remove `path` if it exists. The directory is not flushed, so a power loss may bring the file back."""
    with failing_as(f"remove {path}"), suppress(FileNotFoundError):
        path.unlink(missing_ok=True)


def remove_temporaries(directory: Path) -> None:
    """Remove the temporary files that crashed writes left in `directory`. No write may be running there."""
    with failing_as(f"remove leftover files in {directory}"):
        for path in directory.glob(f".*{_TEMPORARY}"):
            path.unlink(missing_ok=True)


def is_temporary(name: str, *, target: str) -> bool:
    """Return whether `name` is the name of a temporary file that `write_atomically` makes for `target`."""
    return name.startswith(f".{target}.") and name.endswith(_TEMPORARY)


def sync_directory(path: Path) -> None:
    """Flush the entries of the directory `path` to disk. Raise OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(path: Path, content: bytes, *, sync: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, _MODE), "wb", buffering=0) as file:
        os.fchmod(file.fileno(), _MODE)  # regardless of the umask
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        if sync:
            os.fsync(file.fileno())
