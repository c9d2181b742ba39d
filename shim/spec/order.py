"""Orders for the server's OCI runtime, which the server writes between Docker's create and start of a container."""

from collections.abc import Sequence

from shim.api.v1 import api_pb2 as pb
from shim.dockerd.runc import ORDERED_RUNTIME, has_runc_shim
from shim.domain.errors import FailedPrecondition
from shim.engine.answers import EngineInfo
from shim.oci import orders
from shim.oci.user_namespaces import INSTALL, orders_directory
from shim.oci_runtime.order import Json, Order, Restore
from shim.pod import RESOLV_CONF
from shim.spec.mounts import last_in_each_place, mount_options
from shim.spec.user_namespace import namespace_of

MISSING = f"Docker has no OCI runtime {ORDERED_RUNTIME}: {INSTALL} adds it"


def check_takes_orders(info: EngineInfo, *, runtime: str, field: str) -> None:
    """Check that the server's OCI runtime can be in front of an OCI runtime, for what `field` asks for.

    Raise FailedPrecondition with the reason why not.
    """
    reason = why_no_changes(info, runtime=runtime_for_changes(info, runtime=runtime))
    if reason:
        raise FailedPrecondition(f"{field}: {reason}")


def runtime_for_changes(info: EngineInfo, *, runtime: str) -> str:
    """Return the OCI runtime for a container that is to be changed: the server's own, if Docker has it.

    The server's own runtime executes runc, so it replaces no other runtime than runc.
    """
    return ORDERED_RUNTIME if orders_directory(info) is not None and has_runc_shim(info, runtime) else runtime


def why_no_changes(info: EngineInfo, *, runtime: str) -> str:
    """Return why containers of an OCI runtime take no orders; "" if they do."""
    if runtime == ORDERED_RUNTIME:
        return ""
    if not has_runc_shim(info, runtime):
        return f"the OCI runtime {runtime or info.default_runtime} is not runc"
    if orders_directory(info) is None:
        return MISSING
    return "the plugin connected while the container was being created"


def order_container(
    info: EngineInfo,
    container_id: str,
    *,
    runtime: str,
    pod: pb.PodSandboxConfig,
    pause: str = "",
    mounts: Sequence[pb.Mount] = (),
    config: Json | None = None,
    process: Json | None = None,
    restore: Restore | None = None,
) -> None:
    """Write the order of a container created with the OCI runtime `runtime`: settings that Docker has no field for.

    `pause` is the id of the pod's pause container; "" for pause itself. `config` and `process` are changes that NRI
    plugins have asked for. `restore` is the checkpoint that the container continues from. A container of another
    runtime gets no order. Raise FailedPrecondition if it needs one: Docker has lost the server's runtime meanwhile.
    """
    options = mount_options(mounts)
    directory = orders_directory(info) if runtime == ORDERED_RUNTIME else None
    if runtime != ORDERED_RUNTIME and not (options or config or process or restore):
        return
    if directory is None:
        raise FailedPrecondition(f"order container {container_id}: {MISSING}")
    # Of several mounts at the same path, Docker makes only the last (`without_covered`).
    last = last_in_each_place(mounts)
    mapped = [path for path, mount in last.items() if mount.uidMappings]
    order = Order(
        container=container_id,
        user_namespace=namespace_of(pod.linux.security_context.namespace_options, pause=pause),
        docker_root=info.docker_root_dir,
        mapped=(*mapped, *([] if RESOLV_CONF in last else [RESOLV_CONF])),
        kept=tuple(path for path, mount in last.items() if mount.host_path and not mount.uidMappings),
        adjustment={**({"mountOptions": options} if options else {}), **(config or {})},
        process=process or {},
        restore=restore,
    )
    orders.put(directory, order)
