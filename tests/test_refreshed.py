"""A slow value is answered from memory."""

import threading
import time

import pytest
from structlog.testing import capture_logs

from shim.errors import ShimError
from shim.refreshed import REST, Refreshed

SECONDS = 10.0
PERIOD = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Search:
    """Finds one value after the other, each when it is let go."""

    def __init__(self, clock: Clock, *, takes: float = 0.0) -> None:
        self.clock = clock
        self.takes = takes
        self.go_on = threading.Event()
        self.runs = 0

    def __call__(self) -> str:
        assert self.go_on.wait(SECONDS)
        self.clock.now += self.takes
        self.runs += 1
        return f"value {self.runs}"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def value(clock: Clock) -> Refreshed[str]:
    return Refreshed(period=PERIOD, clock=clock)


def settled(value: Refreshed[str]) -> None:
    """Wait until no search is under way."""
    with value._changed:
        assert value._changed.wait_for(lambda: not value._searching, SECONDS)


def test_the_first_caller_waits_for_the_value(value: Refreshed[str], clock: Clock) -> None:
    search = Search(clock)
    search.go_on.set()
    assert value.get(search, patience=SECONDS) == "value 1"


def test_the_first_caller_waits_no_longer_than_he_said(value: Refreshed[str], clock: Clock) -> None:
    search = Search(clock)
    began = time.monotonic()
    assert value.get(search, patience=0.02) is None
    assert time.monotonic() - began < SECONDS / 2
    search.go_on.set()
    assert value.get(search, patience=SECONDS) == "value 1"
    assert search.runs == 1


def test_later_callers_get_what_is_known_at_once(value: Refreshed[str], clock: Clock) -> None:
    search = Search(clock)
    search.go_on.set()
    value.get(search, patience=SECONDS)
    settled(value)
    search.go_on.clear()
    clock.now += PERIOD
    for _ in range(3):
        assert value.get(search, patience=SECONDS) == "value 1"
    search.go_on.set()
    settled(value)
    assert value.get(search, patience=0) == "value 2"
    assert search.runs == 2


def test_nothing_is_searched_within_the_period(value: Refreshed[str], clock: Clock) -> None:
    search = Search(clock)
    search.go_on.set()
    value.get(search, patience=SECONDS)
    settled(value)
    clock.now += PERIOD - 1
    assert value.get(search, patience=0) == "value 1"
    settled(value)
    assert search.runs == 1


def test_a_slow_search_rests_longer(value: Refreshed[str], clock: Clock) -> None:
    search = Search(clock, takes=60.0)
    search.go_on.set()
    value.get(search, patience=SECONDS)
    settled(value)
    clock.now += REST * 60.0 - 1
    value.get(search, patience=0)
    settled(value)
    assert search.runs == 1
    clock.now += 2
    value.get(search, patience=0)
    settled(value)
    assert search.runs == 2


def test_a_failure_keeps_the_last_value_and_is_told_once(value: Refreshed[str], clock: Clock) -> None:
    def fail() -> str:
        raise ShimError("the disk is gone")

    search = Search(clock)
    search.go_on.set()
    value.get(search, patience=SECONDS)
    settled(value)
    with capture_logs() as logs:
        for _ in range(3):
            clock.now += PERIOD
            assert value.get(fail, patience=SECONDS) == "value 1"
            settled(value)
    assert [line["error"] for line in logs] == ["the disk is gone"]


def test_a_failure_before_the_first_value_is_no_value(value: Refreshed[str]) -> None:
    def fail() -> str:
        raise ShimError("not yet")

    assert value.get(fail, patience=SECONDS) is None
