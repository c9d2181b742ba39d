"""Whether mounts can pass between a host path and a container.

Docker looks at this too, but only when the container is started, and then the kubelet sees a failed container instead
of a failed create that names the field.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.container.host_paths import nearest_existing
from shim.errors import FailedPrecondition, reason_of

_FDINFO_MOUNT_ID = "mnt_id:"
_MOUNTINFO = Path("/proc/self/mountinfo")
"""The server shares its mount namespace with dockerd, as the other host paths need too."""


@dataclass(frozen=True, slots=True)
class MountedOn:
    """The mount a path lies on."""

    point: str
    shared: bool
    """Mounts go out from it, and come in."""
    slave: bool
    """Mounts come in."""


def check_propagation(source: Path, *, propagation: pb.MountPropagation, field: str) -> None:
    """FailedPrecondition when `source`, resolved, lies on a mount that cannot propagate as asked, or would if made."""
    if propagation == pb.PROPAGATION_PRIVATE:
        return
    try:
        mount = mount_under(nearest_existing(source))
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {source}: {reason_of(error)}") from error
    if mount.shared or (mount.slave and propagation == pb.PROPAGATION_HOST_TO_CONTAINER):
        return
    wanted = "shared" if propagation == pb.PROPAGATION_BIDIRECTIONAL else "shared or slave"
    raise FailedPrecondition(
        f"{field}.propagation {pb.MountPropagation.Name(propagation)}: {source} is on the mount {mount.point}, which is"
        f" not {wanted}; `mount --make-rshared {mount.point}` on the node makes it so"
    )


def mount_under(path: Path) -> MountedOn:
    """Tell which mount a path is on. OSError when it cannot be looked at.

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
    """Find a mount by its id (proc(5)). One that is not listed lies outside of our root, and is told as private."""
    for line in text.split("\n"):
        fields = line.split(" ")
        if fields[0] == identity:
            optional = [field.partition(":")[0] for field in fields[6 : fields.index("-")]]
            return MountedOn(point=fields[4], shared="shared" in optional, slave="master" in optional)
    return MountedOn(point="/", shared=False, slave=False)


def _mount_id(fdinfo: str) -> str:
    return next(line.split()[1] for line in fdinfo.splitlines() if line.startswith(_FDINFO_MOUNT_ID))
