from types import SimpleNamespace

import pytest

from integration import waiting
from integration.waiting import wait_until
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that advances only in pauses."""
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=clock, sleep=sleep))
    return clock


@pytest.mark.parametrize("after", [0.0, 0.15, 1.0, 4.0, 30.0])
def test_a_condition_is_seen_soon_after_it_became_true(clock: Clock, after: float) -> None:
    began = clock.now
    assert wait_until(lambda: clock.now >= began + after)
    assert clock.now - began - after <= max(0.01, min(0.25, 0.05 * after)) + 1e-9


def test_a_long_wait_polls_rarely(clock: Clock) -> None:
    asked = 0

    def never() -> bool:
        nonlocal asked
        asked += 1
        return False

    with pytest.raises(AssertionError, match="not within 60 s; the last answer was False"):
        wait_until(never)
    assert 60 <= clock.now - 1000 <= 60.25
    assert asked < 350
