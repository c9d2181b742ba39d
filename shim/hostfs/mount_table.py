"""Find the mount a path lies on, and whether mounts propagate to and from it (mount_namespaces(7))."""

import os
from dataclasses import dataclass
from pathlib import Path

_FDINFO_MOUNT_ID = "mnt_id:"
_MOUNTINFO = Path("/proc/self/mountinfo")
"""The server shares its mount namespace with dockerd, as the other host paths need too."""


@dataclass(frozen=True, slots=True)
class MountedOn:
    """The mount a path lies on."""

    point: str
    shared: bool
    """Mounts propagate from it and to it."""
    slave: bool
    """Mounts propagate to it."""


def mount_under(path: Path) -> MountedOn:
    """Return the mount a path is on. Raise OSError when it cannot be inspected.

    By the kernel's mount id, not by the longest mount point that is a prefix: mounts can be stacked and hidden.
    """
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        identity = _mount_id(Path(f"/proc/self/fdinfo/{descriptor}").read_text())
    finally:
        os.close(descriptor)
    # Mount points hold any bytes, and characters that end lines.
    return mount_from_mountinfo(_MOUNTINFO.read_text(errors="surrogateescape"), identity=identity)


def mount_from_mountinfo(text: str, *, identity: str) -> MountedOn:
    """Find a mount by its id (proc(5)). One that is not listed lies outside of our root, and counts as private."""
    for line in text.split("\n"):
        fields = line.split(" ")
        if fields[0] == identity:
            optional = [field.partition(":")[0] for field in fields[6 : fields.index("-")]]
            return MountedOn(point=fields[4], shared="shared" in optional, slave="master" in optional)
    return MountedOn(point="/", shared=False, slave=False)


def _mount_id(fdinfo: str) -> str:
    return next(line.split()[1] for line in fdinfo.splitlines() if line.startswith(_FDINFO_MOUNT_ID))
