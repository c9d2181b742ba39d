"""Inspects host paths that a container mounts, and creates missing paths once the whole request is valid.

A user who can write to a parent directory can replace a directory by a link between check and use. So a resolved path
is opened part by part without following links, and a path that has changed since is an error.

All of this may hang on a dead volume, so `shim.spec.host_calls` calls it in the helper process. For this reason the
module imports little.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shim.domain.errors import FailedPrecondition, reason_of
from shim.hostfs.mount_table import MountedOn, mount_under

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class HostSource:
    """A host path to mount, as inspected."""

    path: str
    """The path with links resolved; it may not exist yet."""
    mount: MountedOn | None = None
    """The mount that contains the path, or would contain it; None if not requested."""


def inspect_host_path(path: str, *, field: str, with_mount: bool) -> HostSource:
    """Resolve the links of a path that exists, or that can be created as a directory.

    Docker would follow a link inside its own mount namespace. Raise FailedPrecondition if the path cannot be inspected,
    or is a dangling link: a directory created at its target would block the expected file, often a socket.
    """
    resolved = Path(os.path.realpath(path))
    try:
        if _missing(resolved):
            _refuse_dangling(Path(path), field=field)
        return HostSource(str(resolved), mount_under(nearest_existing(resolved)) if with_mount else None)
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {path}: {reason_of(error)}") from error


def nearest_existing(resolved: Path) -> Path:
    """Return the path if it exists, else the nearest parent that does."""
    return next(part for part in (resolved, *resolved.parents) if part == Path("/") or not _missing(part))


def ensure_directory(resolved: Path) -> None:
    """Create a missing path as a directory. The kubelet's hostPath needs this; Engines before 23.0 do not do it.

    The directories stay even if the creation of the container fails later. Meanwhile another container may have mounted
    them, which would not prevent their removal. An empty directory does no harm. Raise OSError.
    """
    if not _missing(resolved):
        return
    for part in (*reversed(resolved.parents), resolved):
        if not _missing(part):
            continue
        with open_directory(part.parent) as parent, suppress(FileExistsError):
            os.mkdir(part.name, 0o755, dir_fd=parent)


@contextmanager
def open_directory(resolved: Path) -> Iterator[int]:
    """Hold a directory open for the block. Raise OSError (ENOTDIR) if a part of the path has become a link.

    The descriptor is O_PATH: entries can be opened by name, but not listed.
    """
    place = os.open("/", _PLACE)
    try:
        for name in resolved.parts[1:]:
            inner = os.open(name, _PLACE, dir_fd=place)
            os.close(place)
            place = inner
        yield place
    finally:
        os.close(place)


def _missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    return False


def _refuse_dangling(path: Path, *, field: str) -> None:
    for part in (path, *path.parents):
        if part.is_symlink() and not part.exists():
            raise FailedPrecondition(
                f"{field}.host_path {path}: the link {part} leads to {part.readlink()}, where nothing is"
            )
