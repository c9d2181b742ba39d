"""Finds the writable layer of a container in the mounts of its first process, with both image stores."""

from collections.abc import Iterable
from pathlib import Path

from shim.base.proc import Mount, mounts


def upper_directory(process: Path) -> Path:
    """Return the writable layer of the container that a process (`/proc/<pid>`) belongs to.

    The path is empty if the root is not an overlay or the process is gone. It may be relative (see
    `shim.dockerd.image_store.layer_directory`).
    """
    return root_upper_directory(_mounts(process))


def upper_directories(process: Path) -> set[Path]:
    """Return the writable layers of all running containers, from the mounts of dockerd (`/proc/<pid>`)."""
    uppers = {_upper(mount) for mount in _mounts(process)}
    return uppers - {Path()}


def root_upper_directory(mounts_of_process: Iterable[Mount]) -> Path:
    """Return the `upperdir` of the overlay at `/`; an empty path without an overlay."""
    return next((_upper(mount) for mount in mounts_of_process if mount.point == "/"), Path())


def _mounts(process: Path) -> list[Mount]:
    try:
        return list(mounts((process / "mountinfo").read_bytes()))
    except OSError:  # the process has exited
        return []


def _upper(mount: Mount) -> Path:
    return Path(mount.options.get("upperdir", "") if mount.kind == b"overlay" else "")
