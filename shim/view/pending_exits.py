"""Holds back the exit of a container until its output is in its log.

Clients read the log once, when they see EXITED. The view holds the exit back, so that lists, statuses and events agree.
`docs/node-view.md` shows the state diagram.
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


class NoLogs:
    """Logs of a view that copies no logs: every exit is published at once."""

    def follow(self, container: ContainerLog) -> None:
        """Do nothing."""

    def drained(self, container: ContainerLog, *, run: int) -> bool:  # noqa: ARG002 - the interface has them
        """Return True."""
        return True

    def forget(self, container_id: str) -> None:
        """Do nothing."""


def with_log_path(inspect: ContainerInspect, *, root: Callable[[], str]) -> ContainerInspect:
    """Return the inspect with the path of Docker's log file, even if Docker does not report the path for the driver.

    `root` returns Docker's data root.
    """
    path = log_path(inspect.host_config.log_config.type, reported=inspect.log_path, root=root, container_id=inspect.id)
    return inspect if path == inspect.log_path else msgspec.structs.replace(inspect, log_path=path)


def log_of(record: ContainerRecord, *, docker: str = "") -> ContainerLog:
    """Return the log to copy; `docker` is the path of Docker's file if the record lacks it."""
    return ContainerLog(
        id=record.id,
        docker=docker or record.docker_log_path,
        cri=record.log_path,
        created_at=record.state.created_at,
        driver=driver_of(record.host.log_config.type),
    )


def follow_log(record: Record | None, logs: Drains) -> bool:
    """Request that a running container's log is followed, or that an exited container's log is drained.

    Return False while the log of an exited container is not drained; its exit must not be published yet.
    """
    if not isinstance(record, ContainerRecord) or record.legacy or not record.log_path:
        return True
    if record.state.running:
        logs.follow(log_of(record))
    if record.state.phase != pb.CONTAINER_EXITED:
        return True
    return logs.drained(log_of(record), run=record.state.started_at) or record.state.reason == START_ERROR


def visible_record(record: Record | None, *, drained: bool, before: Record | None = None) -> Record | None:
    """Return the record of a container as clients may see it; `drained` is the result of `follow_log`. Pure.

    An exited container is shown as RUNNING until its log is drained. An exit that `before`, the visible record, already
    shows stays visible: otherwise the container would seem to have been restarted. For the same reason an UNKNOWN
    container stays UNKNOWN until its exit is published.
    """
    if drained or not isinstance(record, ContainerRecord) or _is_same_exit(before, record):
        return record
    return before if _is_unknown(before) else replace(record, state=_as_running(record.state))


def _is_same_exit(before: Record | None, record: ContainerRecord) -> bool:
    if not isinstance(before, ContainerRecord) or before.state.phase != pb.CONTAINER_EXITED:
        return False
    return before.state.started_at == record.state.started_at


def _is_unknown(before: Record | None) -> bool:
    return isinstance(before, ContainerRecord) and before.state.phase == pb.CONTAINER_UNKNOWN


def _as_running(state: ContainerState) -> ContainerState:
    return replace(state, phase=pb.CONTAINER_RUNNING, exit_code=0, reason="", message="", finished_at=0)
