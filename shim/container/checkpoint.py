"""CheckpointContainer."""

import json
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shim.base import deadline
from shim.checkpoint.root import CHECKPOINTING
from shim.container.find import running_container
from shim.criu.checkpoint import Task, carry_out, new_work, read_task
from shim.criu.order import ContainerOrder, Source
from shim.criu.program import search_path
from shim.runtime import Runtime
from shim.spec.annotations import container_names
from shim.view.records import ContainerRecord, SandboxRecord

DEFAULT_SECONDS = 600.0
"""Timeout of a checkpoint if the request has none: some 60 GiB of memory on a disk that writes 100 MB/s."""
_NS = 1_000_000_000


def checkpoint_container(rt: Runtime, *, container_id: str, location: str, timeout: int) -> None:
    """Write a checkpoint of a running container to an archive at `location`, mode 0600. The container keeps running.

    `timeout` is in seconds, 0 for DEFAULT_SECONDS. If this raises, no file is left.
    """
    record = running_container(rt, container_id=container_id)
    with deadline.bound(timeout or DEFAULT_SECONDS), rt.locks.checkpoint():
        order = ContainerOrder(
            source=source_of(rt, record),
            path=search_path(os.environ),
            work=str(new_work(rt.config.root_directory / CHECKPOINTING)),
            location=location,
        )
        carry_out(rt.own_exec, order, what=f"checkpoint container {record.id}")


def source_of(rt: Runtime, record: ContainerRecord) -> Source:
    """Return the data about a running container for its checkpoint. Raise FailedPrecondition with the obstacle."""
    sandbox = rt.view.sandbox(record.sandbox_id)
    task = read_task(record.id, exec_root=Path(sandbox.exec_root), pid=record.state.pid)
    return Source(
        container=record.id,
        pid=record.state.pid,
        shared_pids=sandbox.state.pid if task.joins_pids else 0,
        runc=str(task.runc),
        state_root=str(task.state_root),
        upper=str(task.upper),
        log=record.log_path,
        documents={
            name: json.dumps(document, indent=1)
            for name, document in (
                ("config.dump", _config(record, task)),
                ("spec.dump", _spec(record, sandbox, task)),
                ("status.dump", _status(record)),
            )
        },
    )


def _config(record: ContainerRecord, task: Task) -> dict[str, object]:
    """Return the content of config.dump: checkpointctl's ContainerConfig."""
    return {
        "id": record.id,
        "name": record.config.metadata.name,
        "rootfsImage": record.image_id,
        "rootfsImageRef": record.image_id,
        "rootfsImageName": record.config.image.user_specified_image or record.image_spec.image,
        "runtime": task.runc.name,
        "createdTime": _time(record.state.created_at),
        "checkpointedTime": _time(time.time_ns()),
        "restoredTime": "0001-01-01T00:00:00Z",
        "restored": False,
    }


def _spec(record: ContainerRecord, sandbox: SandboxRecord, task: Task) -> Mapping[str, Any]:
    """Return the container's OCI configuration, with containerd's annotations for the names of pod and container."""
    names = container_names(
        record.config, image=record.image_spec.image, pod=sandbox.config.metadata, sandbox_id=record.sandbox_id
    )
    return {**task.config, "annotations": {**(task.config.get("annotations") or {}), **names}}


def _status(record: ContainerRecord) -> dict[str, object]:
    """Return the content of status.dump: checkpointctl's ContainerdStatus. Times are ns since the epoch."""
    return {
        "CreatedAt": record.state.created_at,
        "StartedAt": record.state.started_at,
        "FinishedAt": 0,
        "ExitCode": 0,
        "Pid": record.state.pid,
        "Reason": "",
        "Message": "",
    }


def _time(nanoseconds: int) -> str:
    whole = datetime.fromtimestamp(nanoseconds // _NS, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{nanoseconds % _NS:09d}Z"
