"""The user namespace of a pod (`hostUsers: false`). Docker has no field for it, so the server's OCI runtime creates it.

Docker creates the containers with that runtime, and an order between create and start describes the namespace.
"""

from collections.abc import Sequence

from shim.api.v1 import api_pb2 as pb
from shim.dockerd.runc import ORDERED_RUNTIME, has_runc_shim
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.oci_runtime.order import UserNamespace
from shim.runtime import Runtime

FIELD = "config.linux.security_context.namespace_options.userns_options"


def is_asked_for(options: pb.NamespaceOption) -> bool:
    """Return whether a pod or container asks for a user namespace of the pod."""
    return options.HasField("userns_options") and options.userns_options.mode == pb.POD


def check_supported(rt: Runtime, *, runtime: str) -> None:
    """Raise FailedPrecondition unless a pod of this OCI runtime, "" for Docker's default, can have a user namespace."""
    problem = rt.user_namespaces.problem()
    if not problem and not has_runc_shim(rt.facts.info(), runtime):
        problem = f"the OCI runtime {runtime or rt.facts.info().default_runtime} is not runc"
    if problem:
        raise FailedPrecondition(f"{FIELD}: pods cannot have user namespaces on this node: {problem}")


def check_container(config: pb.ContainerConfig, *, pod: pb.PodSandboxConfig) -> None:
    """Check that a container has its pod's user namespace, and its mounts have the same id mappings or none.

    Raise InvalidArgument with the name of the field.
    """
    namespace = pod.linux.security_context.namespace_options
    own = config.linux.security_context.namespace_options
    asked = is_asked_for(namespace)
    if is_asked_for(own) != asked or (asked and own.userns_options != namespace.userns_options):
        raise InvalidArgument(f"{FIELD} must be those of the pod sandbox")
    of_pod = _mappings(namespace.userns_options.uids, namespace.userns_options.gids)
    for index, mount in enumerate(config.mounts):
        of_mount = _mappings(mount.uidMappings, mount.gidMappings)
        if of_mount != ([], []) and (not asked or of_mount != of_pod):
            raise InvalidArgument(
                f"config.mounts[{index}].uidMappings and gidMappings are not those of the pod's user namespace"
            )


def _mappings(
    uids: Sequence[pb.IDMapping], gids: Sequence[pb.IDMapping]
) -> tuple[list[pb.IDMapping], list[pb.IDMapping]]:
    return list(uids), list(gids)


def namespace_of(options: pb.NamespaceOption, *, pause: str) -> UserNamespace | None:
    """Return the user namespace for the order of a container; None for the host's.

    `pause` is the id of the pod's pause container; "" for pause itself.
    """
    if not is_asked_for(options):
        return None
    uids, gids = options.userns_options.uids[0], options.userns_options.gids[0]
    return UserNamespace(uid=uids.host_id, uids=uids.length, gid=gids.host_id, gids=gids.length, pause=pause)


def runtime_of_pod(rt: Runtime, options: pb.NamespaceOption, *, runtime: str) -> str:
    """Return the server's own OCI runtime if the pod asks for a user namespace, otherwise `runtime`."""
    if not is_asked_for(options):
        return runtime
    check_supported(rt, runtime=runtime)
    return ORDERED_RUNTIME
