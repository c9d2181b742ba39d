"""Which container is meant."""

from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime
from shim.view.records import ContainerRecord


def running_container(rt: Runtime, *, container_id: str) -> ContainerRecord:
    """The running container of an id or unique prefix. NotFound, or FailedPrecondition when it is not running."""
    record = rt.view.container(container_id)
    if not record.life.running:
        raise FailedPrecondition(f"container {record.id} is not running")
    return record
