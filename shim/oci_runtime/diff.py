"""Applies a layer of an OCI image, a checkpoint's changed files, to the root of a container.

All paths are resolved below a descriptor of the root without following links: a link in the image must not lead out.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from shim.oci_runtime import kernel
from shim.oci_runtime.order import OrderError

WHITEOUT = ".wh."
"""Prefix of the name of a file that a layer removes."""
OPAQUE = ".wh..wh..opq"
"""Name of the entry that hides a directory's content in the layers below. It comes after the directory's own entry."""
XATTR = "SCHILY.xattr."
"""Prefix of the PAX keywords of extended attributes, as in tar programs and container engines."""
_REFUSED_ATTRIBUTES = ("trusted.overlay.", "user.overlay.")
"""Attributes of overlayfs, which refer to files in other layers."""
_TYPES = {tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE}
_PATH_BYTES = 4095
_MOST_ID = (1 << 32) - 1
_MOST_SECONDS = 1 << 40
_CHUNK = 1 << 20


def check_entry(entry: tarfile.TarInfo) -> None:
    """Raise OrderError for an entry that `apply` refuses, such as a device, or a path that leads out of the root."""
    _check_whiteout(_parts(entry.name)[-1])
    if not (0 <= entry.uid < _MOST_ID and 0 <= entry.gid < _MOST_ID and abs(entry.mtime) < _MOST_SECONDS):
        raise OrderError(f"{entry.name!r} has an owner or a time that no file has")
    if entry.type not in _TYPES or entry.issparse():
        raise OrderError(f"{entry.name!r} is a device, a sparse file or another special file")
    if entry.islnk():
        _parts(entry.linkname)
    for name in entry.pax_headers:
        if name.startswith(tuple(XATTR + each for each in _REFUSED_ATTRIBUTES)):
            raise OrderError(f"{entry.name!r} has an attribute of overlayfs")


def _check_whiteout(base: str) -> None:
    """Raise OrderError if the last part of a path is a whiteout of an invalid name, such as `..`."""
    removed = base.removeprefix(WHITEOUT)
    if base not in (OPAQUE, removed) and (removed in ("", ".", "..") or removed.startswith(WHITEOUT)):
        raise OrderError(f"{base!r} is not the name of a whiteout")


def apply(layer: str, root: str) -> None:
    """Apply the file `layer` to the directory `root`. Raise OrderError, OSError or TarError.

    It can be repeated after a failure.
    """
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    times: list[tuple[str, float]] = []
    try:
        with tarfile.open(layer) as archive:
            for entry in archive:
                check_entry(entry)
                _apply(archive, entry, top)
                if entry.isdir():
                    times.append((entry.name, entry.mtime))
                archive.members.clear()  # type: ignore[attr-defined] # tarfile would remember each
        for name, mtime in reversed(times):
            with _parent(top, name) as (parent, base):
                os.utime(base, (mtime, mtime), dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(top)


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts) or "\0" in name or len(os.fsencode(name)) > _PATH_BYTES:
        raise OrderError(f"{name[:_PATH_BYTES]!r} is not a path inside of a layer")
    return parts


@contextmanager
def _parent(top: int, name: str) -> Iterator[tuple[int, str]]:
    """Open the parent directory of a path; yield its descriptor and the last part of the path."""
    directory, _, base = name.rpartition("/")
    opened = os.dup(top)
    try:
        if directory:
            inside = kernel.open_inside(top, directory)
            os.close(opened)
            opened = inside
        yield opened, base
    finally:
        os.close(opened)


def _apply(archive: tarfile.TarFile, entry: tarfile.TarInfo, top: int) -> None:
    with _parent(top, entry.name) as (parent, base):
        if base == OPAQUE:
            for name in os.listdir(f"/proc/self/fd/{parent}"):
                _remove(parent, name)
        elif base.startswith(WHITEOUT):
            _remove(parent, base.removeprefix(WHITEOUT))
        elif entry.isdir():
            _make_directory(entry, parent, base)
        else:
            _remove(parent, base)
            _make(archive, entry, top, parent, base)


def _remove(parent: int, name: str) -> None:
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def _make_directory(entry: tarfile.TarInfo, parent: int, base: str) -> None:
    try:
        found = os.stat(base, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        found = None
    if found is not None and not stat.S_ISDIR(found.st_mode):
        os.unlink(base, dir_fd=parent)
        found = None
    if found is None:
        os.mkdir(base, 0o700, dir_fd=parent)
    opened = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        _set_attributes(entry, opened)
    finally:
        os.close(opened)


def _make(archive: tarfile.TarFile, entry: tarfile.TarInfo, top: int, parent: int, base: str) -> None:
    if entry.islnk():
        with _parent(top, entry.linkname) as (directory, name):
            os.link(name, base, src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)
        return
    if entry.issym():
        os.symlink(entry.linkname, base, dir_fd=parent)
        os.chown(base, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
    elif entry.isfifo():
        os.mkfifo(base, 0o600, dir_fd=parent)
        os.chown(base, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        os.chmod(base, entry.mode, dir_fd=parent)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        opened = os.open(base, flags, 0o600, dir_fd=parent)
        try:
            content = archive.extractfile(entry)
            if content is not None:
                _copy(content, opened)
            _set_attributes(entry, opened)
        finally:
            os.close(opened)
    os.utime(base, (entry.mtime, entry.mtime), dir_fd=parent, follow_symlinks=False)


def _copy(content: IO[bytes], target: int) -> None:
    while piece := content.read(_CHUNK):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]


def _set_attributes(entry: tarfile.TarInfo, opened: int) -> None:
    os.fchown(opened, entry.uid, entry.gid)
    os.fchmod(opened, entry.mode)
    # After fchown(2), which clears the capabilities of a file.
    for name, value in entry.pax_headers.items():
        if name.startswith(XATTR):
            os.setxattr(opened, name.removeprefix(XATTR), value.encode(errors="surrogateescape"))
