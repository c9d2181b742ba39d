"""Computes the CRI events between two records of a container. Pure.

CRI events are computed from records, not from Docker's events. After a reconnect Docker repeats events or has dropped
them, and an event may report a change that an RPC has already published.
"""

from dataclasses import replace

from shim.api.v1 import api_pb2 as pb
from shim.view.records import ContainerState, Record
from shim.view.translate import ERROR, EXIT_UNSEEN, START_ERROR, UNSEEN

CREATED = pb.CONTAINER_CREATED_EVENT
STARTED = pb.CONTAINER_STARTED_EVENT
STOPPED = pb.CONTAINER_STOPPED_EVENT
DELETED = pb.CONTAINER_DELETED_EVENT


def steps(old: Record | None, new: Record | None) -> tuple[pb.ContainerEventType, ...]:
    """Return the events from `old` to `new` in order; None stands for no container."""
    if new is None:
        if old is None:
            return ()
        return (STOPPED, DELETED) if _alive(old.state) else (DELETED,)
    if old is None:
        return (CREATED, *_run(new.state))
    if old.state.from_list_only:
        return _after_list_only(old.state, new.state)
    if _run_of(old.state) != _run_of(new.state):
        # Docker restarted the container between two inspects, so the known run has ended.
        ended = (STOPPED,) if _alive(old.state) else ()
        return (*ended, *_run(new.state))
    return (STOPPED,) if _alive(old.state) and _ended(new.state) else ()


def removed(record: Record, *, at: int) -> Record:
    """Return the last record of a removed container. A running container becomes EXITED with EXIT_UNSEEN."""
    if not _alive(record.state):
        return record
    state = replace(
        record.state,
        phase=pb.CONTAINER_EXITED,
        pid=0,
        exit_code=EXIT_UNSEEN,
        reason=ERROR,
        message="the container was removed before its exit was seen",
        finished_at=at,
    )
    return replace(record, state=state)


def missed_exit(record: Record, *, at: int) -> Record:
    """Return the EXITED record of a container that Docker lists as running although its process is gone."""
    state = replace(
        record.state,
        phase=pb.CONTAINER_EXITED,
        pid=0,
        exit_code=EXIT_UNSEEN,
        reason=UNSEEN,
        message="the process is gone, but Docker has missed the exit and lists the container as running",
        finished_at=at,
        missed_exit=True,
    )
    return replace(record, state=state)


def _run(state: ContainerState) -> tuple[pb.ContainerEventType, ...]:
    """Return the events of a run from its start; a failed start gives STOPPED only."""
    if state.reason == START_ERROR:
        return (STOPPED,)
    if not state.started_at:
        return ()
    return (STARTED, STOPPED) if _ended(state) else (STARTED,)


def _after_list_only(old: ContainerState, new: ContainerState) -> tuple[pb.ContainerEventType, ...]:
    """Return the events after a record from a list, which lacks the times that identify a run."""
    if _ended(new):
        return (STOPPED,)
    return (STARTED,) if _alive(new) and not _alive(old) else ()


def _run_of(state: ContainerState) -> tuple[int, bool]:
    """Return the identity of a run. A failed start is a separate run."""
    return state.started_at, state.reason == START_ERROR


def _alive(state: ContainerState) -> bool:
    """Return whether the run has no known end; an UNKNOWN container keeps its times."""
    return bool(state.started_at) and not state.finished_at


def _ended(state: ContainerState) -> bool:
    return state.phase == pb.CONTAINER_EXITED
