"""Which container is meant, and which must not run beside it: one of its name and attempt, or with its log."""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import AlreadyExists, FailedPrecondition, NotFound
from shim.domain.ids import SandboxId
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


def check_name_free(rt: Runtime, metadata: pb.ContainerMetadata, *, sandbox_id: SandboxId) -> None:
    """Raise AlreadyExists while a container of this name and attempt runs in the pod, whatever Docker calls it.

    A kubelet that saw an older state of the pod would start the same container twice.
    """
    twin = _running_twin(rt, metadata, sandbox_id=sandbox_id)
    if twin is not None:
        raise AlreadyExists(f"create container: {_describe(metadata)} runs in this pod as container {twin.id}")


def check_no_twin_runs(rt: Runtime, record: ContainerRecord) -> None:
    """Raise before a start: AlreadyExists if its name and attempt run, FailedPrecondition if another writes its log."""
    metadata = record.config.metadata
    twin = _running_twin(rt, metadata, sandbox_id=record.sandbox_id)
    if twin is not None:
        raise AlreadyExists(f"start container {record.id}: {_describe(metadata)} runs in this pod as {twin.id}")
    if not record.log_path or record.legacy:
        return
    for other in rt.view.containers():
        if other.log_path == record.log_path and other.state.may_run and not other.legacy:
            raise FailedPrecondition(f"start container {record.id}: container {other.id} writes to {record.log_path}")


def _running_twin(rt: Runtime, metadata: pb.ContainerMetadata, *, sandbox_id: SandboxId) -> ContainerRecord | None:
    return next(
        (
            record
            for record in rt.view.containers_of(sandbox_id)
            if record.state.may_run
            and (record.config.metadata.name, record.config.metadata.attempt) == (metadata.name, metadata.attempt)
        ),
        None,
    )


def _describe(metadata: pb.ContainerMetadata) -> str:
    return f"attempt {metadata.attempt} of {metadata.name}"
