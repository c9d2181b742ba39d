"""Archives and trees that are the same for the same content: names sorted, one time, no user."""

import gzip
import os
import tarfile
from pathlib import Path

PROGRAM = 0o755
DATA = 0o644


def write_tar_gz(archive: Path, *, tree: Path, time: int) -> None:
    """Pack a directory, its own name included."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=time, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in [tree, *sorted(tree.rglob("*"))]:
            tar.add(path, path.relative_to(tree.parent), recursive=False, filter=lambda info: _plain(info, time))


def normalise(tree: Path, *, time: int) -> None:
    """Give all files of a tree one time, and modes that do not follow the umask."""
    for path in sorted(tree.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(PROGRAM if path.is_dir() or path.stat().st_mode & 0o100 else DATA)
        os.utime(path, (time, time), follow_symlinks=False)
    tree.chmod(PROGRAM)
    os.utime(tree, (time, time))


def _plain(info: tarfile.TarInfo, time: int) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = time
    info.mode = PROGRAM if info.isdir() or info.mode & 0o100 else DATA
    return info
