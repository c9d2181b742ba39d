"""The events between two records are those that happened, each once."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shim.api.v1 import api_pb2 as pb
from shim.view.changes import CREATED, DELETED, STARTED, STOPPED, removed, steps
from shim.view.records import ContainerRecord, ContainerState
from tests.view.samples import container, container_state


def at(state: ContainerState) -> ContainerRecord:
    return container(state=state)


NEW = at(container_state(pb.CONTAINER_CREATED))
RUNS = at(container_state(pb.CONTAINER_RUNNING, started=2))
RUNS_AGAIN = at(container_state(pb.CONTAINER_RUNNING, started=9))
ENDED = at(container_state(pb.CONTAINER_EXITED, started=2, finished=5, reason="Completed"))
ENDED_AGAIN = at(container_state(pb.CONTAINER_EXITED, started=9, finished=9, reason="Error"))
FAILED = at(container_state(pb.CONTAINER_EXITED, started=1, finished=1, reason="StartError"))
UNKNOWN = at(container_state(pb.CONTAINER_UNKNOWN, started=2))
UNKNOWN_AGAIN = at(container_state(pb.CONTAINER_UNKNOWN, started=9))
NEVER_RAN = at(container_state(pb.CONTAINER_EXITED, finished=1, reason="Completed"))
GUESSED = at(container_state(pb.CONTAINER_RUNNING, started=1, from_list_only=True))
GUESSED_END = at(container_state(pb.CONTAINER_UNKNOWN, from_list_only=True))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, NEW, (CREATED,)),
        (None, RUNS, (CREATED, STARTED)),
        (None, ENDED, (CREATED, STARTED, STOPPED)),
        (None, FAILED, (CREATED, STOPPED)),
        (None, NEVER_RAN, (CREATED,)),
        (None, None, ()),
        (NEW, NEW, ()),
        (NEW, RUNS, (STARTED,)),
        (NEW, ENDED, (STARTED, STOPPED)),
        (NEW, FAILED, (STOPPED,)),
        (NEW, NEVER_RAN, ()),
        (NEW, None, (DELETED,)),
        (FAILED, RUNS, (STARTED,)),
        (FAILED, FAILED, ()),
        (RUNS, RUNS, ()),
        (RUNS, ENDED, (STOPPED,)),
        (RUNS, None, (STOPPED, DELETED)),
        (RUNS, RUNS_AGAIN, (STOPPED, STARTED)),
        (RUNS, ENDED_AGAIN, (STOPPED, STARTED, STOPPED)),
        (RUNS, UNKNOWN, ()),
        (UNKNOWN, RUNS, ()),
        (UNKNOWN, ENDED, (STOPPED,)),
        (UNKNOWN, None, (STOPPED, DELETED)),
        (ENDED, ENDED, ()),
        (ENDED, RUNS_AGAIN, (STARTED,)),
        (ENDED, ENDED_AGAIN, (STARTED, STOPPED)),
        (ENDED, None, (DELETED,)),
        (GUESSED, RUNS, ()),
        (GUESSED, ENDED, (STOPPED,)),
        (GUESSED_END, ENDED, (STOPPED,)),
        (GUESSED_END, RUNS, (STARTED,)),
    ],
)
def test_steps_between_two_records(
    old: ContainerRecord | None, new: ContainerRecord | None, expected: tuple[pb.ContainerEventType, ...]
) -> None:
    assert steps(old, new) == expected


LIFE = [NEW, RUNS, UNKNOWN, RUNS, ENDED, RUNS_AGAIN, UNKNOWN_AGAIN, ENDED_AGAIN]


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=len(LIFE), max_size=len(LIFE)))
def test_the_events_of_any_history_are_in_a_valid_order(seen: list[bool]) -> None:
    """Whatever changes were missed: created comes first, started and stopped alternate, deleted comes last."""
    history = [record for record, was_seen in zip(LIFE, seen, strict=True) if was_seen]
    reported = [kind for old, new in zip([None, *history], [*history, None], strict=True) for kind in steps(old, new)]
    there = runs = False
    for kind in reported:
        assert there != (kind == CREATED)
        assert runs or kind != STOPPED
        assert not runs or kind not in (STARTED, DELETED)
        there = kind != DELETED
        runs = runs if kind in (CREATED, DELETED) else kind == STARTED
    assert not there


def test_a_container_removed_while_running_has_exited() -> None:
    last = removed(RUNS, at=70)
    assert (last.state.phase, last.state.exit_code, last.state.reason) == (pb.CONTAINER_EXITED, 255, "Error")
    assert (last.state.finished_at, last.state.pid) == (70, 0)
    assert replace(last, state=RUNS.state) == RUNS


@pytest.mark.parametrize("record", [NEW, ENDED, FAILED])
def test_an_exited_container_that_is_removed_keeps_its_state(record: ContainerRecord) -> None:
    assert removed(record, at=70) is record
