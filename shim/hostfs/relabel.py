"""SELinux labels of the host paths that a container mounts, and of the files that are made for it.

The label is Docker's: it chooses one for each pod, or derives it from the container's `selinux_options`, and reports it
in an inspect. Where SELinux is off, or the container is not confined, there is none and nothing has to be done. Docker
would relabel by itself only for its older form of a mount, `source:target:Z`, which cannot say that a read-only mount
is not recursively so and takes no path with a colon; and only at start. As in containerd and cri-dockerd the label is
the pod's own, with its categories, not one that all containers may use.
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
"""Directories within each other. Each is held open while what is in it is labelled."""

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
"""Relabelled, these would leave the host's own services without access to them."""


def relabel(source: Path, *, label: str, field: str, xattr: str = SELINUX_XATTR) -> None:
    """Label a host path, with links resolved, and all below it; what has the label already is not written.

    FailedPrecondition for a directory of the system, and where the file system refuses. One that knows no labels stays
    as it is: to SELinux everything on it has the label it was mounted with.
    """
    if str(source) in _SYSTEM:
        raise FailedPrecondition(f"{field}.selinux_relabel: {source} is the system's own and is not relabelled")
    try:
        with open_directory(source.parent) as parent:
            for path in _with_all_below(source.name, parent=parent):
                _ensure_label(path, label.encode(), xattr=xattr)
    except OSError as error:
        raise FailedPrecondition(f"{field}.selinux_relabel: label {source} as {label}: {reason_of(error)}") from error


def label_file(path: Path, *, label: str, xattr: str = SELINUX_XATTR) -> None:
    """Label one file of the server, in a directory only it may write to. A file system may support no labels."""
    with failing_as(f"label {path} as {label}"):
        _ensure_label(str(path), label.encode(), xattr=xattr)


def _with_all_below(name: str, *, parent: int) -> Iterator[str]:
    """Yield a path for what `name` is and for everything below it; the last part of none is to be followed as a link.

    Containers may write there while it runs, so names are joined to open directories: one that is replaced by a link
    leads nowhere else.
    """
    yield _held(parent, name)
    with _open_entry(name, parent=parent) as directory:
        if directory is not None:
            yield from _below(directory, depth=1)


def _below(directory: int, *, depth: int) -> Iterator[str]:
    deadline.current().check("relabel a mounted directory")
    if depth > MAX_DEPTH:
        raise OSError(errno.ELOOP, f"more than {MAX_DEPTH} directories are within each other")
    for name in os.listdir(directory):
        yield _held(directory, name)
        with _open_entry(name, parent=directory) as inner:
            if inner is not None:
                yield from _below(inner, depth=depth + 1)


def _held(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


@contextmanager
def _open_entry(name: str, *, parent: int) -> Iterator[int | None]:
    """Open a directory for the block; None for anything else, which is not touched, and for what is gone."""
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
        if error.errno not in {errno.ENOENT, errno.ENOTSUP}:  # removed in the meantime; no labels here
            raise


def _label_of(path: str, *, xattr: str) -> bytes:
    try:
        # The kernel ends a label with a NUL where a policy is loaded.
        return os.getxattr(path, xattr, follow_symlinks=False).rstrip(b"\0")
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
        return b""
