"""Inspects after events cost Docker little beside what caused the events."""

from shim.view.pace import QUIET_SECONDS, Pace


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def inspect(pace: Pace, key: str, *, seconds: float) -> None:
    assert pace.wait(key) == 0
    pace.end(key, seconds=seconds)


def test_an_image_with_one_event_after_another_is_inspected_every_few_seconds() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    inspects = 0
    for _ in range(600):  # a minute, ten events a second
        if pace.wait("tagged") == 0:
            pace.end("tagged", seconds=0.001)
            inspects += 1
        clock.now += 0.1
    assert 10 <= inspects <= 13


def test_many_images_take_their_share_of_the_time() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    inspect(pace, "first", seconds=0.025)
    begun = 0
    for second in range(60):
        for number in range(10):
            begun += pace.wait(f"{second} {number}") == 0
            pace.end(f"{second} {number}", seconds=0.025)
        clock.now += 1
    assert begun * 0.025 <= 0.25 + 60 * 0.01  # seconds


def test_a_few_images_are_inspected_at_once() -> None:
    pace = Pace(clock=Clock())
    for number in range(100):
        inspect(pace, str(number), seconds=0.002)


def test_an_image_has_its_turn_in_the_end() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    inspect(pace, "slow", seconds=1)
    inspect(pace, "within the credit", seconds=1)
    wait = pace.wait("waits")
    assert wait > 0
    clock.now += wait / 2
    assert pace.wait("waits") == wait / 2
    clock.now += wait / 2
    assert pace.wait("waits") == 0


def test_a_turn_that_is_given_up_is_taken_anew() -> None:
    clock = Clock()
    pace = Pace(clock=clock)
    inspect(pace, "image", seconds=0.001)
    assert pace.wait("image") == QUIET_SECONDS
    pace.drop("image")
    clock.now += QUIET_SECONDS
    assert pace.wait("image") == 0
