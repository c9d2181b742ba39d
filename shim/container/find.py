"""Finds containers by id, and containers that must not run concurrently: of the same attempt, or with the same log."""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import AlreadyExists, FailedPrecondition, NotFound
from shim.domain.ids import SandboxId
from shim.runtime import Runtime
from shim.view.records import ContainerRecord


def find_container(rt: Runtime, container_id: str) -> ContainerRecord | None:
    """Return the container with an id or unique prefix; None for an unknown id."""
    try:
        return rt.view.container(container_id)
    except NotFound:
        return None


def running_container(rt: Runtime, *, container_id: str) -> ContainerRecord:
    """Return the running container with an id or unique prefix. Raise NotFound or FailedPrecondition."""
    record = rt.view.container(container_id)
    if not record.state.running:
        raise FailedPrecondition(f"container {record.id} is not running")
    return record


def twins(rt: Runtime, metadata: pb.ContainerMetadata, *, sandbox_id: SandboxId) -> list[ContainerRecord]:
    """Return the stopped containers of this name and attempt in the pod, under any Docker name.

    Raise AlreadyExists if such a container runs: a kubelet that saw an older state of the pod would start it twice.
    """
    found = _twins(rt, metadata, sandbox_id=sandbox_id)
    for twin in found:
        if twin.state.may_run:
            raise AlreadyExists(f"create container: {_describe(metadata)} runs in this pod as container {twin.id}")
    return found


def check_no_twin_runs(rt: Runtime, record: ContainerRecord) -> None:
    """Raise AlreadyExists if the same attempt already runs, FailedPrecondition if another container writes this log."""
    metadata = record.config.metadata
    for twin in _twins(rt, metadata, sandbox_id=record.sandbox_id):
        if twin.state.may_run:
            raise AlreadyExists(f"start container {record.id}: {_describe(metadata)} runs in this pod as {twin.id}")
    if not record.log_path or record.legacy:
        return
    for other in rt.view.containers():
        if other.log_path == record.log_path and other.state.may_run and not other.legacy:
            raise FailedPrecondition(f"start container {record.id}: container {other.id} writes to {record.log_path}")


def _twins(rt: Runtime, metadata: pb.ContainerMetadata, *, sandbox_id: SandboxId) -> list[ContainerRecord]:
    return [
        record
        for record in rt.view.containers_of(sandbox_id)
        if (record.config.metadata.name, record.config.metadata.attempt) == (metadata.name, metadata.attempt)
    ]


def _describe(metadata: pb.ContainerMetadata) -> str:
    return f"attempt {metadata.attempt} of {metadata.name}"
