"""Finds pod sandboxes by pause container or by checkpoint.

A pause container can be removed externally (`docker rm -f`, `docker system prune`) while its addresses are still
reserved. Then only the checkpoint is left. The sandbox is listed as not ready, so that the kubelet stops and removes
it, which releases the addresses.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.model import SandboxCheckpoint
from shim.domain.errors import NotFound
from shim.domain.ids import SandboxId, match_id
from shim.domain.labels import sandbox_config_from_dict
from shim.domain.names import sandbox_name
from shim.runtime import Runtime
from shim.view.records import ContainerState, SandboxRecord


def sandboxes(rt: Runtime) -> list[SandboxRecord]:
    """Return all sandboxes of the node."""
    alive = list(rt.view.sandboxes())
    known = {record.id for record in alive}
    return alive + [
        _record_from_checkpoint(checkpoint) for checkpoint in rt.checkpoints.all() if checkpoint.sandbox_id not in known
    ]


def find_sandbox(rt: Runtime, sandbox_id: str) -> SandboxRecord:
    """Return the sandbox with an id or unique prefix. Raise NotFound, or InvalidArgument for an ambiguous prefix."""
    try:
        return rt.view.sandbox(sandbox_id)
    except NotFound:
        kept = {checkpoint.sandbox_id: checkpoint for checkpoint in rt.checkpoints.all()}
        only = match_id(sandbox_id, kept, field="pod sandbox id")
        if only is None:
            raise
    return _record_from_checkpoint(kept[only])


def last_known_sandbox(rt: Runtime, sandbox_id: str) -> SandboxRecord | None:
    """Return the last known sandbox with a full id, even while Docker is unavailable; None for an unknown id."""
    record = rt.view.last_known(sandbox_id)
    if isinstance(record, SandboxRecord):
        return record
    kept = next((each for each in rt.checkpoints.all() if each.sandbox_id == sandbox_id), None)
    return _record_from_checkpoint(kept) if kept else None


@contextmanager
def hold_sandbox(rt: Runtime, sandbox_id: str) -> Iterator[SandboxRecord | None]:
    """Hold the lock of a sandbox's name; yield the record read under the lock, or None for an unknown id."""
    try:
        name = sandbox_name(find_sandbox(rt, sandbox_id).config.metadata)
    except NotFound:
        yield None
        return
    with rt.locks.sandbox(name):
        try:
            record = find_sandbox(rt, sandbox_id)
        except NotFound:
            record = None
        yield record


def _record_from_checkpoint(checkpoint: SandboxCheckpoint) -> SandboxRecord:
    config = sandbox_config_from_dict(checkpoint.config)
    state = ContainerState(
        phase=pb.CONTAINER_EXITED,
        pid=0,
        exit_code=0,
        reason="",
        message="the pause container is gone",
        created_at=checkpoint.created_at,
        started_at=0,
        finished_at=0,
    )
    return SandboxRecord(
        id=SandboxId(checkpoint.sandbox_id),
        name=sandbox_name(config.metadata),
        config=config,
        runtime_handler=checkpoint.runtime_handler,
        state=state,
    )
