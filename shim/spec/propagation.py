"""Whether mounts can pass between a host path and a container.

Docker checks this too, but only when the container is started, and then the kubelet sees a failed container instead of
a failed create that names the field.
"""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.hostfs.host_paths import HostSource


def check_propagation(source: HostSource, *, propagation: pb.MountPropagation, field: str) -> None:
    """Raise FailedPrecondition when `source` lies on a mount that cannot propagate as asked, or would if made."""
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
