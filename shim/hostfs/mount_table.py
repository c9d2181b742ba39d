"""Finds the mount that contains a path, and its propagation (mount_namespaces(7))."""

import os
from dataclasses import dataclass
from pathlib import Path

from shim.base.proc import mounts, value_of

_MOUNTINFO = Path("/proc/self/mountinfo")
"""The server's own mounts, because it shares dockerd's mount namespace."""


@dataclass(frozen=True, slots=True)
class MountedOn:
    """The mount that contains a path."""

    point: str
    shared: bool
    """Whether mounts propagate from it and to it."""
    slave: bool
    """Whether mounts propagate to it."""


def mount_under(path: Path) -> MountedOn:
    """Return the mount that contains a path. Raise OSError if the path cannot be inspected.

    This uses the kernel's mount id, because the longest matching mount point may be hidden by another mount.
    """
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        identity = value_of(Path(f"/proc/self/fdinfo/{descriptor}").read_bytes(), b"mnt_id")
    finally:
        os.close(descriptor)
    return mount_from_mountinfo(_MOUNTINFO.read_bytes(), identity=identity)


def mount_from_mountinfo(mountinfo: bytes, *, identity: bytes) -> MountedOn:
    """Find a mount by its id in /proc/<pid>/mountinfo (proc(5)).

    A mount that is not listed is outside the process's root. It counts as private.
    """
    for mount in mounts(mountinfo):
        if mount.id == identity:
            propagation = mount.propagation
            return MountedOn(point=mount.point, shared=b"shared" in propagation, slave=b"master" in propagation)
    return MountedOn(point="/", shared=False, slave=False)
