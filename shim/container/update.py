"""UpdateContainerResources."""

from shim.api.v1 import api_pb2 as pb
from shim.container.cgroup import apply_writes, extra_writes
from shim.container.resources import update_fields
from shim.errors import FailedPrecondition
from shim.runtime import Runtime


def update_container_resources(rt: Runtime, *, container_id: str, linux: pb.LinuxContainerResources) -> None:
    """Change the limits of a created or running container; a field left at 0 or empty stays as it is.

    The OOM score is not among them: Docker cannot change it, and the kubelet never does.
    """
    record = rt.view.container(container_id)
    if record.life.state not in {pb.CONTAINER_CREATED, pb.CONTAINER_RUNNING}:
        raise FailedPrecondition(f"container {record.id} has ended, its resources cannot be changed")
    writes = extra_writes(linux, field="linux", version=rt.facts.info().cgroup_version)
    if writes and not record.life.pid:
        raise FailedPrecondition(
            f"container {record.id} does not run yet: {', '.join(name for _, name in writes)} can be set once it does"
        )
    if fields := update_fields(linux):
        rt.engine.update_container(record.id, body=fields)
    # Last, since Docker writes again what it knows of.
    apply_writes(writes, pid=record.life.pid, container_id=record.id)
    rt.view.refresh_container(record.id)
