"""When the end of a container may be shown: not before its output is in its log.

Clients read the log once they see EXITED, and once only. Held back here, in the view, the end is one thing for lists,
statuses and events alike.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.engine.answers import ContainerInspect
from shim.logs.drivers import driver_of, log_path
from shim.logs.interface import ContainerLog, Drains
from shim.view.records import ContainerRecord, ContainerState, Record
from shim.view.translate import START_ERROR


class Unlogged:
    """Nobody copies: every end is shown at once."""

    def follow(self, container: ContainerLog) -> None:
        """See `shim.logs.interface`."""

    def drained(self, container: ContainerLog, *, run: int) -> bool:  # noqa: ARG002 - see `shim.logs.interface`
        """See `shim.logs.interface`."""
        return True

    def forget(self, container_id: str) -> None:
        """See `shim.logs.interface`."""


def with_log_path(seen: ContainerInspect, *, root: Callable[[], str]) -> ContainerInspect:
    """Return the inspect with Docker's log file in it, also for a driver whose file Docker does not report.

    `root` returns Docker's own directory.
    """
    path = log_path(seen.host_config.log_config.type, reported=seen.log_path, root=root, container_id=seen.id)
    return seen if path == seen.log_path else msgspec.structs.replace(seen, log_path=path)


def log_of(record: ContainerRecord, *, docker: str = "") -> ContainerLog:
    """What is to be copied; `docker` is the path of Docker's file where the record does not tell it yet."""
    return ContainerLog(
        id=record.id,
        docker=docker or record.docker_log_path,
        cri=record.log_path,
        created_at=record.state.created_at,
        driver=driver_of(record.host.log_config.type),
    )


def as_shown(record: Record | None, logs: Drains, *, before: Record | None = None) -> Record | None:
    """Give what may be shown of a container now, and see to it that the rest can be shown later.

    A container that has ended, and whose output is not written yet, still runs for those who ask; unless its end has
    been shown (in `before`, what is public): to a client it would have been started again. So it would after a doubt
    whether it runs, which stays meanwhile.
    """
    if not isinstance(record, ContainerRecord) or record.legacy or not record.log_path:
        return record
    if record.state.running:
        logs.follow(log_of(record))
    elif record.state.phase == pb.CONTAINER_EXITED:
        drained = logs.drained(log_of(record), run=record.state.started_at)
        if not drained and record.state.reason != START_ERROR and not _is_same_end(before, record):
            return before if _is_doubt(before) else replace(record, state=_still_running(record.state))
    return record


def _is_same_end(before: Record | None, record: ContainerRecord) -> bool:
    if not isinstance(before, ContainerRecord) or before.state.phase != pb.CONTAINER_EXITED:
        return False
    return before.state.started_at == record.state.started_at


def _is_doubt(before: Record | None) -> bool:
    return isinstance(before, ContainerRecord) and before.state.phase == pb.CONTAINER_UNKNOWN


def _still_running(state: ContainerState) -> ContainerState:
    return replace(state, phase=pb.CONTAINER_RUNNING, exit_code=0, reason="", message="", finished_at=0)
