"""Paths on the host that a container mounts: inspected first, made when the whole request is known good.

A user that may write to a directory on the way can put a link in the place of another one between a check and its use.
So what was resolved is walked by descriptors that follow no link: a path that has changed since is an error.

All of these may hang on a dead volume: `shim.spec.host_calls` has them called in the helper process. So this
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
    """A host path that is to be mounted, as it was when it was inspected."""

    path: str
    """With links resolved; it need not be there yet."""
    mount: MountedOn | None = None
    """Which mount it lies on, or would if made; None if that was not asked."""


def inspect_host_path(path: str, *, field: str, with_mount: bool) -> HostSource:
    """Resolve symlinks on the host, of a path that is there or can become a directory.

    Docker would follow a link inside its own mount namespace. FailedPrecondition for what cannot be inspected, and for
    a link whose target is missing: a directory there would be in the way of what is meant to come, often a socket.
    """
    resolved = Path(os.path.realpath(path))
    try:
        if _missing(resolved):
            _refuse_dangling(Path(path), field=field)
        return HostSource(str(resolved), mount_under(nearest_existing(resolved)) if with_mount else None)
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {path}: {reason_of(error)}") from error


def nearest_existing(resolved: Path) -> Path:
    """Return the path itself, or if it is missing the directory in which its first missing part would be made."""
    return next(part for part in (resolved, *resolved.parents) if part == Path("/") or not _missing(part))


def ensure_directory(resolved: Path) -> None:
    """Make a missing path a directory, as the kubelet's hostPath needs; Engines before 23.0 do not.

    What is made stays, also when its container is not created after all: another container may have mounted it by
    then, and a mount keeps no directory from being removed. An empty directory does no harm. OSError names what is in
    the way.
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
    """Hold a directory for the block. OSError (ENOTDIR) when a part of the path is a link, which it was not before.

    The descriptor is a place only: what is in it can be named and opened, not listed.
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
