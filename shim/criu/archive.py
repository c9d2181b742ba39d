"""Writes the archive of a checkpoint, in the layout that containerd, Podman and checkpointctl read.

The archive contains:

    config.dump, spec.dump, status.dump   JSON descriptions of the container
    checkpoint/                           criu's images of its processes
    rootfs-diff.tar                       changes to its root file system, as a layer of an OCI image
    container.log                         the end of its log
    dump.log, stats-dump                  criu's log and statistics
"""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from shim.oci_runtime.diff import OPAQUE, WHITEOUT, XATTR

ARCHIVE_LIMIT = 64 << 30
"""Maximum bytes of an archive."""
LOG_LIMIT = 16 << 20
"""Maximum bytes of the log in an archive. A kubelet rotates logs of 10 MiB."""

_OVERLAY = "trusted.overlay."
_ALSO_OVERLAY = "user.overlay."
_OPAQUE_ATTRIBUTE = "trusted.overlay.opaque"
_ELSEWHERE = ("redirect", "metacopy")
"""Attributes of overlayfs for a file whose name or content is in a lower layer."""
_SELINUX = "security.selinux"
"""The SELinux label of a file. It is left out, because the node of the restore has other labels."""


class Refused(Exception):
    """These files cannot be archived."""


class TooLarge(Refused):
    """The archive would exceed its limit."""


class Budget:
    """Counts the bytes of an archive against its limit."""

    def __init__(self, *, limit: int = ARCHIVE_LIMIT) -> None:
        self._limit = limit
        self._taken = 0

    def take(self, size: int) -> None:
        """Count `size` bytes. Raise TooLarge beyond the limit."""
        self._taken += size
        if self._taken > self._limit:
            raise TooLarge(f"the checkpoint has more than {self._limit} bytes")


class Writer:
    """Writes a tar archive to a file. Memory does not grow with the number of members."""

    def __init__(self, file: IO[bytes], *, budget: Budget, check: Callable[[], None]) -> None:
        """`check` is called before each read; it raises to abort the work."""
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `close`
        self._budget = budget
        self._check = check

    def close(self) -> None:
        """Write the end of the archive."""
        self._tar.close()

    def add_content(self, name: str, content: bytes) -> None:
        """Add a file that only root may read."""
        self._budget.take(len(content))
        self._tar.addfile(_private(name, size=len(content)), io.BytesIO(content))

    def add_file(self, name: str, path: Path) -> None:
        """Add a regular file; only root may read it in the archive. Raise Refused for another file, or OSError."""
        with _opened(path) as file:
            self._add_open(_private(name, size=os.fstat(file.fileno()).st_size), file)

    def add_end(self, name: str, path: Path, *, limit: int) -> None:
        """Add the whole lines in the last `limit` bytes of a file. Raise Refused unless it is regular, or OSError."""
        with open_end(path, limit=limit) as file:
            size = os.fstat(file.fileno()).st_size
            self._add_open(_private(name, size=size - file.tell()), file)

    def add_directory(self, name: str, path: Path) -> None:
        """Add a directory of regular files. Raise Refused for another file, or OSError."""
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o700
        self._tar.addfile(entry)
        for each in sorted(path.iterdir()):
            self.add_file(f"{name}/{each.name}", each)

    def add_layer(self, upper: Path) -> None:
        """Add the changes in overlayfs's directory `upper` as a layer of an OCI image, including whiteouts.

        Raise Refused if a layer cannot represent a file, or OSError.
        """
        linked: dict[tuple[int, int], str] = {}
        for name, path in _entries(upper):
            self._check()
            if path.name.startswith(WHITEOUT):
                raise Refused(f"a layer cannot hold /{name}: its name would mark a file as removed")
            found = path.lstat()
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
                self._add_empty(_whiteout(name))
            elif not stat.S_ISSOCK(found.st_mode):  # tar cannot represent sockets
                self._add_entry(name, path, found, linked)
            self._tar.getmembers().clear()  # tarfile would remember each

    def _add_entry(self, name: str, path: Path, found: os.stat_result, linked: dict[tuple[int, int], str]) -> None:
        attributes = _attributes(path, name=name)
        is_opaque = attributes.pop(_OPAQUE_ATTRIBUTE, b"") == b"y"
        entry = _entry(name, path, found)
        entry.pax_headers = {
            XATTR + attribute: value.decode(errors="surrogateescape") for attribute, value in attributes.items()
        }
        if stat.S_ISREG(found.st_mode):
            first = linked.setdefault((found.st_dev, found.st_ino), name) if found.st_nlink > 1 else name
            if first == name:
                with _opened(path) as file:
                    self._add_open(entry, file)
                return
            entry.type, entry.linkname, entry.size = tarfile.LNKTYPE, first, 0
        self._budget.take(tarfile.BLOCKSIZE)
        self._tar.addfile(entry)
        if is_opaque:
            self._add_empty(f"{name}/{OPAQUE}")

    def _add_empty(self, name: str) -> None:
        self._budget.take(tarfile.BLOCKSIZE)
        self._tar.addfile(_private(name, size=0))

    def _add_open(self, entry: tarfile.TarInfo, file: IO[bytes]) -> None:
        self._budget.take(tarfile.BLOCKSIZE + entry.size)
        self._tar.addfile(entry, _Checked(file, self._check))


class _Checked:
    """A file that calls `check` before each read."""

    def __init__(self, file: IO[bytes], check: Callable[[], None]) -> None:
        self._file = file
        self._check = check

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._file.read(size)


def open_end(path: Path, *, limit: int) -> IO[bytes]:
    """Open a file at the first whole line of its last `limit` bytes. Raise Refused unless it is regular, or OSError."""
    file = _opened(path)
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        file.seek(size - limit)
        file.readline(limit)
    return file


def _opened(path: Path) -> IO[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise Refused(f"{path} is not a regular file")
    return file


def _private(name: str, *, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o600, size
    return entry


def _entry(name: str, path: Path, found: os.stat_result) -> tarfile.TarInfo:
    """Return the header of a file, with numeric owners."""
    entry = tarfile.TarInfo(name)
    entry.mode, entry.uid, entry.gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
    entry.mtime = found.st_mtime
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFREG:
        entry.size = found.st_size
    elif kind == stat.S_IFLNK:
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115 - a Path would change `a//b`
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        entry.type = tarfile.CHRTYPE if kind == stat.S_IFCHR else tarfile.BLKTYPE
        entry.devmajor, entry.devminor = os.major(found.st_rdev), os.minor(found.st_rdev)
    else:
        entry.type = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFIFO: tarfile.FIFOTYPE}[kind]
    return entry


def _entries(top: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name relative to `top` and the path of each file below `top`, directories before their content."""
    waiting = [("", top)]
    while waiting:
        prefix, directory = waiting.pop()
        for each in sorted(os.scandir(directory), key=lambda entry: entry.name):
            name = prefix + each.name
            yield name, Path(each.path)
            if each.is_dir(follow_symlinks=False):
                waiting.append((name + "/", Path(each.path)))


def _attributes(path: Path, *, name: str) -> dict[str, bytes]:
    """Return a file's extended attributes without its SELinux label and overlayfs's own, except _OPAQUE_ATTRIBUTE.

    Raise Refused if the file's name or content is in a lower layer, or if tar cannot represent an attribute.
    """
    found = {}
    for attribute in os.listxattr(path, follow_symlinks=False):
        own = attribute.startswith(_OVERLAY)
        if own and attribute.removeprefix(_OVERLAY) in _ELSEWHERE:
            raise Refused(f"overlayfs keeps /{name} in another layer ({attribute})")
        if "=" in attribute or not attribute.isascii():
            raise Refused(f"tar cannot represent the extended attribute {attribute!r} of /{name}")
        if attribute == _OPAQUE_ATTRIBUTE or not (own or attribute.startswith(_ALSO_OVERLAY) or attribute == _SELINUX):
            found[attribute] = os.getxattr(path, attribute, follow_symlinks=False)
    return found


def _whiteout(name: str) -> str:
    directory, slash, base = name.rpartition("/")
    return f"{directory}{slash}{WHITEOUT}{base}"
