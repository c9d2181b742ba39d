"""CheckpointPod."""

import os
from collections.abc import Sequence
from typing import Any

from shim import pod
from shim.base import deadline
from shim.checkpoint.root import CHECKPOINTING
from shim.container.checkpoint import DEFAULT_SECONDS, source_of
from shim.container.find import running_container
from shim.criu.checkpoint import carry_out, new_work
from shim.criu.order import PodOrder
from shim.criu.program import search_path
from shim.domain import labels
from shim.domain.errors import FailedPrecondition
from shim.runtime import Runtime
from shim.view.records import ContainerRecord


def checkpoint_pod(rt: Runtime, *, sandbox_id: str, output_path: str, container_ids: Sequence[str]) -> None:
    """Write a checkpoint of a pod's running containers to an empty directory. The containers keep running.

    All containers are paused before the first is written, so that the checkpoint is consistent. If this raises, the
    directory is empty again.
    """
    sandbox = pod.ready_sandbox(rt, sandbox_id=sandbox_id)
    records = [running_container(rt, container_id=container_id) for container_id in container_ids]
    for record in records:
        if record.sandbox_id != sandbox.id:
            raise FailedPrecondition(f"container_ids: container {record.id} is not in pod sandbox {sandbox.id}")
    with deadline.bound(DEFAULT_SECONDS), rt.locks.checkpoint():
        order = PodOrder(
            sources=tuple(source_of(rt, record) for record in records),
            path=search_path(os.environ),
            work=str(new_work(rt.config.root_directory / CHECKPOINTING)),
            directory=output_path,
            documents=tuple(_entry(rt, record) for record in records),
        )
        carry_out(rt.own_exec, order, what=f"checkpoint pod sandbox {sandbox.id}")


def _entry(rt: Runtime, record: ContainerRecord) -> dict[str, Any]:
    """Return the entry of a container in the manifest (`shim.sandbox.manifest.Entry`), without its files."""
    return {
        "name": record.config.metadata.name,
        "layers": rt.engine.inspect_image(record.image_id).root_fs.layers or [],
        "config": labels.config_as_dict(record.config),
    }
