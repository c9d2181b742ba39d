"""Which container is meant."""

from shim.domain.errors import FailedPrecondition, NotFound
from shim.runtime import Runtime
from shim.view.records import ContainerRecord


def find_container(rt: Runtime, container_id: str) -> ContainerRecord | None:
    """Return the container of an id or unique prefix; None for an unknown one, which is gone or never was."""
    try:
        return rt.view.container(container_id)
    except NotFound:
        return None


def running_container(rt: Runtime, *, container_id: str) -> ContainerRecord:
    """Return the container of an id or unique prefix. Raise NotFound, or FailedPrecondition if it does not run."""
    record = rt.view.container(container_id)
    if not record.state.running:
        raise FailedPrecondition(f"container {record.id} is not running")
    return record
