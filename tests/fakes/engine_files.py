"""The files of a fake image, as Docker's archive API returns them."""

import io
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from shim.engine.answers import PathKind, PathStat

_MODES = {PathKind.FILE: 0o644, PathKind.DIRECTORY: 1 << 31, PathKind.LINK: 1 << 27, PathKind.OTHER: 1 << 25}
_TYPES = {
    PathKind.FILE: tarfile.REGTYPE,
    PathKind.DIRECTORY: tarfile.DIRTYPE,
    PathKind.LINK: tarfile.SYMTYPE,
    PathKind.OTHER: tarfile.FIFOTYPE,
}


@dataclass(frozen=True, kw_only=True)
class FakeFile:
    """An entry of an image; its parent directories exist implicitly."""

    kind: PathKind = PathKind.FILE
    content: bytes = b""
    link: str = ""


Files = Mapping[str, FakeFile]
"""By absolute path."""


def stat_path(files: Files, path: str) -> PathStat | None:
    """Answer like `HEAD /containers/{id}/archive`."""
    found = _entry(files, path)
    if found is None:
        return None
    target = _resolved(files, path) if found.kind is PathKind.LINK else ""
    return PathStat(size=len(found.content), mode=_MODES[found.kind], link_target=target)


def archive(files: Files, path: str) -> bytes | None:
    """Answer like `GET /containers/{id}/archive`, but without the content of directories."""
    found = _entry(files, path)
    if found is None:
        return None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        entry = tarfile.TarInfo(posixpath.basename(path) or "/")
        entry.type, entry.size, entry.linkname = _TYPES[found.kind], len(found.content), found.link
        tar.addfile(entry, io.BytesIO(found.content))
    return buffer.getvalue()


def _entry(files: Files, path: str) -> FakeFile | None:
    """Return the entry at a path; links in its directories are followed, a link at its end is not."""
    parent, name = posixpath.split(posixpath.normpath(path))
    where = posixpath.join(_resolved(files, parent), name) if name else "/"
    if where in files:
        return files[where]
    below = where.rstrip("/") + "/"
    is_parent = where == "/" or any(other.startswith(below) for other in files)
    return FakeFile(kind=PathKind.DIRECTORY) if is_parent else None


def _resolved(files: Files, path: str) -> str:
    """Resolve every link; `..` stays in the root."""
    done, left = "/", path.strip("/").split("/")
    for _ in range(255):
        if not left:
            return done
        name, *left = left
        done = posixpath.normpath(posixpath.join(done, name))
        if done in files and (link := files[done].link):
            done = "/" if link.startswith("/") else posixpath.dirname(done)
            left = [*link.strip("/").split("/"), *left]
    raise AssertionError("a loop of links")
