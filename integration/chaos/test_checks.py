"""The checks of logs and events find violations."""

import pytest

from integration.chaos.events import Seen, event_violations, missing_events
from integration.chaos.logs import faults_of

C = "c" * 64


@pytest.mark.parametrize(
    ("numbers", "docker_has", "contiguous", "said"),
    [
        ([0, 1, 2], [0, 1, 2], True, []),
        ([0, 1, 2, 3], [0, 1], True, []),
        ([0, 2], [0, 2], False, []),
        ([0, 2], [0, 2], True, ["1 lines are missing, the first is 1"]),
        ([0, 1], [0, 1, 2, 3], False, ["2 lines that Docker has are missing, the first is 2"]),
        ([0, 1, 1], [0, 1], False, ["1 comes after 1"]),
        ([0, 2, 1], [0, 1, 2], False, ["1 comes after 2"]),
        ([], [], True, []),
    ],
)
def test_missing_and_reordered_log_lines_are_found(
    numbers: list[int], docker_has: list[int], contiguous: bool, said: list[str]
) -> None:
    assert faults_of(numbers, docker_has, contiguous=contiguous) == said


@pytest.mark.parametrize(
    ("numbers", "docker_has", "said"),
    [
        ([0, 1, 2, 0, 1], [0, 1, 2, 0, 1], []),
        ([0, 1, 1], [0, 1], ["1 comes after 1"]),
        ([0, 1], [0, 1, 0, 1, 2], ["1 lines that Docker has are missing, the first is 2"]),
    ],
)
def test_the_log_of_a_restarted_container_may_begin_again(
    numbers: list[int], docker_has: list[int], said: list[str]
) -> None:
    assert faults_of(numbers, docker_has, contiguous=True, once=False) == said


def seen(*steps: str, life: int = 1) -> list[Seen]:
    return [Seen(life, C, step) for step in steps]


@pytest.mark.parametrize(
    ("came", "violations"),
    [
        (seen("created", "started", "stopped", "deleted"), 0),
        (seen("started", "deleted"), 0),
        (seen("created", "created"), 1),
        (seen("started", "created"), 1),
        (seen("created", "started") + seen("started", "stopped", life=2), 0),
    ],
)
def test_duplicate_and_reordered_events_are_found(came: list[Seen], violations: int) -> None:
    assert len(event_violations(came)) == violations


@pytest.mark.parametrize(
    ("steps", "violations"),
    [
        (("created", "started", "stopped", "started", "stopped", "deleted"), 0),
        (("started", "stopped", "started"), 0),
        (("created", "started", "started"), 1),
        (("started", "created", "stopped"), 1),
        (("created", "deleted", "started"), 1),
    ],
)
def test_a_restarted_container_may_start_and_stop_in_turn(steps: tuple[str, ...], violations: int) -> None:
    assert len(event_violations(seen(*steps), restarted={C})) == violations


def test_missing_events_are_found() -> None:
    came = seen("created", "started", "stopped")
    assert missing_events(came, life=1, made={C}, gone=set()) == []
    assert missing_events(came, life=1, made={C}, gone={C}) == [f"event deleted of {C[:12]} never came"]
    assert len(missing_events(came, life=2, made={C}, gone=set())) == 2
