"""Host paths that a container mounts: inspected first, created once the whole request is valid.

A user who can write to a directory on the way can replace a directory by a link between a check and its use. So a
resolved path is walked with descriptors that follow no link: a path that has changed since is an error.

All of this may hang on a dead volume, so `shim.spec.host_calls` calls it in the helper process. This module imports
little for that reason.
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
    """A host path to mount, as it was when inspected."""

    path: str
    """With links resolved; it may not exist yet."""
    mount: MountedOn | None = None
    """The mount that contains it, or would contain it; None if not requested."""


def inspect_host_path(path: str, *, field: str, with_mount: bool) -> HostSource:
    """Resolve links on the host; the path exists or can become a directory.

    Docker would follow a link inside its own mount namespace. Raise FailedPrecondition if it cannot be inspected, or is
    a dangling link: a directory created there would be in the way of the expected target, often a socket.
    """
    resolved = Path(os.path.realpath(path))
    try:
        if _missing(resolved):
            _refuse_dangling(Path(path), field=field)
        return HostSource(str(resolved), mount_under(nearest_existing(resolved)) if with_mount else None)
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {path}: {reason_of(error)}") from error


def nearest_existing(resolved: Path) -> Path:
    """Return the path, or if it is missing the directory in which its first missing part would be created."""
    return next(part for part in (resolved, *resolved.parents) if part == Path("/") or not _missing(part))


def ensure_directory(resolved: Path) -> None:
    """Create a missing path as a directory, as the kubelet's hostPath needs; Engines before 23.0 do not.

    The directories stay even if the container is not created after all: another container may have mounted them by
    then, and a mount does not keep a directory from being removed. An empty directory does no harm. Raise OSError with
    the obstacle.
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

    The descriptor is O_PATH: entries can be named and opened, but not listed.
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
