"""Which steps lie between two records of one container. Pure.

Steps come from records and not from Docker's events: those are repeated after a reconnect, lost while there is no
connection, and told apart from what an RPC of ours has published already by nothing.
"""

from dataclasses import replace

from shim.api.v1 import api_pb2 as pb
from shim.view.records import Life, Record
from shim.view.translate import ERROR, EXIT_UNSEEN, START_ERROR, UNSEEN

CREATED = pb.CONTAINER_CREATED_EVENT
STARTED = pb.CONTAINER_STARTED_EVENT
STOPPED = pb.CONTAINER_STOPPED_EVENT
DELETED = pb.CONTAINER_DELETED_EVENT


def steps(old: Record | None, new: Record | None) -> tuple[pb.ContainerEventType, ...]:
    """Give the steps from `old` to `new` in order; None stands for a container that is not there."""
    if new is None:
        if old is None:
            return ()
        return (STOPPED, DELETED) if _alive(old.life) else (DELETED,)
    if old is None:
        return (CREATED, *_run(new.life))
    if old.life.guessed:
        return _after_guess(old.life, new.life)
    if _run_of(old.life) != _run_of(new.life):
        # Docker restarted it while nobody looked: the run that was known has ended.
        ended = (STOPPED,) if _alive(old.life) else ()
        return (*ended, *_run(new.life))
    return (STOPPED,) if _alive(old.life) and _ended(new.life) else ()


def vanished(record: Record, *, at: int) -> Record:
    """Give the last state of a container that is gone; one that still ran has ended, nobody knows how."""
    if not _alive(record.life):
        return record
    life = replace(
        record.life,
        state=pb.CONTAINER_EXITED,
        pid=0,
        exit_code=EXIT_UNSEEN,
        reason=ERROR,
        message="it was removed before its exit was seen",
        finished_at=at,
    )
    return replace(record, life=life)


def unnoticed(record: Record, *, at: int) -> Record:
    """Give the state of a container whose process was found gone while Docker calls it running."""
    life = replace(
        record.life,
        state=pb.CONTAINER_EXITED,
        pid=0,
        exit_code=EXIT_UNSEEN,
        reason=UNSEEN,
        message="its process is gone, but docker has missed the exit and calls it running",
        finished_at=at,
        unnoticed=True,
    )
    return replace(record, life=life)


def _run(life: Life) -> tuple[pb.ContainerEventType, ...]:
    """Steps of one run from its beginning; a container whose start failed has ended without having started."""
    if life.reason == START_ERROR:
        return (STOPPED,)
    if not life.started_at:
        return ()
    return (STARTED, STOPPED) if _ended(life) else (STARTED,)


def _after_guess(old: Life, new: Life) -> tuple[pb.ContainerEventType, ...]:
    """Steps after a guess, whose times cannot tell one run from another."""
    if _ended(new):
        return (STOPPED,)
    return (STARTED,) if _alive(new) and not _alive(old) else ()


def _run_of(life: Life) -> tuple[int, bool]:
    """What tells one run of a container from the next. A failed start is a run of its own."""
    return life.started_at, life.reason == START_ERROR


def _alive(life: Life) -> bool:
    """Whether a run goes on, as far as was known last: an UNKNOWN container keeps its times."""
    return bool(life.started_at) and not life.finished_at


def _ended(life: Life) -> bool:
    return life.state == pb.CONTAINER_EXITED
