"""Checks whether mounts can propagate between a host path and a container.

Docker checks this too, but only at the start: the kubelet would see a failed container instead of a failed create that
names the field.
"""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.hostfs.host_paths import HostSource


def check_propagation(source: HostSource, *, propagation: pb.MountPropagation, field: str) -> None:
    """Raise FailedPrecondition if `source` is, or would be created, on a mount that cannot propagate as requested."""
    mount = source.mount
    if propagation == pb.PROPAGATION_PRIVATE or mount is None:
        return
    if mount.shared or (mount.slave and propagation == pb.PROPAGATION_HOST_TO_CONTAINER):
        return
    wanted = "shared" if propagation == pb.PROPAGATION_BIDIRECTIONAL else "shared or slave"
    raise FailedPrecondition(
        f"{field}.propagation {pb.MountPropagation.Name(propagation)}: {source.path} is on the mount {mount.point},"
        f" which is not {wanted}; `mount --make-rshared {mount.point}` on the node makes it so"
    )
