"""Sets the SELinux labels of host paths that a container mounts, and of files that are created for it.

Docker chooses a label for each pod, or derives it from the container's `selinux_options`, and reports it in an inspect.
Without SELinux, or for an unconfined container, it reports no label, and nothing is relabelled. As in containerd and
cri-dockerd, each pod has its own categories in its label.

Docker itself relabels only at start, and only for its older form of a mount, `source:target:Z`. This form cannot
express a non-recursive read-only mount, or a path with a colon.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shim.base import deadline
from shim.base.atomic_files import failing_as
from shim.domain.errors import FailedPrecondition, reason_of
from shim.hostfs.host_paths import open_directory

SELINUX_XATTR = "security.selinux"

MAX_DEPTH = 256
"""Maximum nesting of directories. Each directory is open while its content is labelled."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_SYSTEM = frozenset(
    f"/{path}"
    for path in (
        *("", "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "proc", "root", "run"),
        *("sbin", "srv", "sys", "tmp", "usr", "var", "var/lib", "var/log", "var/run", "var/tmp"),
        *("etc/passwd", "etc/shadow", "etc/pki", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "usr/share"),
    )
)
"""Relabelling these would lock out the host's own services."""


def relabel(source: Path, *, label: str, field: str, xattr: str = SELINUX_XATTR) -> None:
    """Label a host path, with links resolved, and everything below it, except files that already have the label.

    Raise FailedPrecondition for a system directory, and if the file system refuses. Skip file systems without labels:
    all their files have the label of the mount.
    """
    if str(source) in _SYSTEM:
        raise FailedPrecondition(f"{field}.selinux_relabel: {source} is a system directory and is not relabelled")
    try:
        with open_directory(source.parent) as parent:
            for path in _with_all_below(source.name, parent=parent):
                _ensure_label(path, label.encode(), xattr=xattr)
    except OSError as error:
        raise FailedPrecondition(f"{field}.selinux_relabel: label {source} as {label}: {reason_of(error)}") from error


def label_file(path: Path, *, label: str, xattr: str = SELINUX_XATTR) -> None:
    """Label a file in a directory that only the server can write to, unless its file system has no labels."""
    with failing_as(f"label {path} as {label}"):
        _ensure_label(str(path), label.encode(), xattr=xattr)


def _with_all_below(name: str, *, parent: int) -> Iterator[str]:
    """Yield a path for `name` and for everything below it. The caller must not follow a link in the last part.

    Containers may write there meanwhile. So each path starts at an open directory: a directory that is replaced by a
    link cannot lead elsewhere.
    """
    yield _held(parent, name)
    with _open_entry(name, parent=parent) as directory:
        if directory is not None:
            yield from _below(directory, depth=1)


def _below(directory: int, *, depth: int) -> Iterator[str]:
    deadline.current().check("relabel a mounted directory")
    if depth > MAX_DEPTH:
        raise OSError(errno.ELOOP, f"more than {MAX_DEPTH} nested directories")
    for name in os.listdir(directory):
        yield _held(directory, name)
        with _open_entry(name, parent=directory) as inner:
            if inner is not None:
                yield from _below(inner, depth=depth + 1)


def _held(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


@contextmanager
def _open_entry(name: str, *, parent: int) -> Iterator[int | None]:
    """Open a directory for the block; yield None for any other or missing entry."""
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _ensure_label(path: str, label: bytes, *, xattr: str) -> None:
    try:
        if _label_of(path, xattr=xattr) != label:
            os.setxattr(path, xattr, label, follow_symlinks=False)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTSUP}:  # removed meanwhile; labels not supported
            raise


def _label_of(path: str, *, xattr: str) -> bytes:
    try:
        # With a loaded policy, the kernel ends a label with NUL.
        return os.getxattr(path, xattr, follow_symlinks=False).rstrip(b"\0")
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return b""
