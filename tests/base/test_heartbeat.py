import time

import pytest

from shim.base import heartbeat as module
from shim.base.heartbeat import Heartbeat


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The fake monotonic time, in a list so that tests can change it."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_process_that_answers_is_pinged_periodically(now: list[float]) -> None:
    heartbeat = Heartbeat()
    seen = []
    for _ in range(3):
        now[0] += module.PING_SECONDS
        seen.append(heartbeat.is_ping_due)
        heartbeat.note_ping()
        now[0] += module.ANSWER_SECONDS / 2
        seen.append(heartbeat.is_ping_due or heartbeat.is_lost)
        heartbeat.note_answer()
        seen.append(heartbeat.seconds_left() == module.PING_SECONDS)
    assert seen == [True, False, True] * 3


def test_a_process_that_does_not_answer_in_time_is_lost(now: list[float]) -> None:
    heartbeat = Heartbeat()
    now[0] += module.PING_SECONDS
    heartbeat.note_ping()
    assert heartbeat.seconds_left() == module.ANSWER_SECONDS
    now[0] += module.ANSWER_SECONDS
    assert heartbeat.is_lost


def test_any_answer_counts(now: list[float]) -> None:
    heartbeat = Heartbeat()
    heartbeat.note_ping()
    now[0] += module.ANSWER_SECONDS
    heartbeat.note_answer()
    assert not heartbeat.is_lost


def test_the_time_to_answer_doubles_with_each_lost_process(now: list[float]) -> None:
    """A process that resumes a large log answers late, and must not be killed repeatedly."""
    heartbeat, had = Heartbeat(), []
    for _ in range(6):
        heartbeat.note_ping()
        had.append(heartbeat.seconds_left())
        now[0] += had[-1]
        assert heartbeat.is_lost
        heartbeat = heartbeat.of_next()
    assert had == [4.0, 8.0, 16.0, 32.0, 64.0, 64.0]
    heartbeat = heartbeat.of_next()  # this process died by itself
    heartbeat.note_ping()
    assert heartbeat.seconds_left() == module.ANSWER_SECONDS
