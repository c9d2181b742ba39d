"""Inspects after events cost Docker little."""

from shim.view.image_pace import QUIET_SECONDS, ImagePace


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def inspect(pace: ImagePace, key: str, *, seconds: float) -> None:
    assert pace.wait(key) == 0
    pace.end(key, seconds=seconds)


def test_an_image_with_continual_events_is_inspected_every_few_seconds() -> None:
    clock = Clock()
    pace = ImagePace(clock=clock)
    inspects = 0
    for _ in range(600):  # a minute with ten events a second
        if pace.wait("tagged") == 0:
            pace.end("tagged", seconds=0.001)
            inspects += 1
        clock.now += 0.1
    assert 10 <= inspects <= 13


def test_the_inspects_of_many_images_keep_to_their_share() -> None:
    clock = Clock()
    pace = ImagePace(clock=clock)
    inspect(pace, "first", seconds=0.025)
    begun = 0
    for second in range(60):
        for number in range(10):
            begun += pace.wait(f"{second} {number}") == 0
            pace.end(f"{second} {number}", seconds=0.025)
        clock.now += 1
    assert begun * 0.025 <= 0.25 + 60 * 0.01  # seconds


def test_a_few_images_are_inspected_at_once() -> None:
    pace = ImagePace(clock=Clock())
    for number in range(100):
        inspect(pace, str(number), seconds=0.002)


def test_every_image_gets_its_turn() -> None:
    clock = Clock()
    pace = ImagePace(clock=clock)
    inspect(pace, "slow", seconds=1)
    inspect(pace, "within the credit", seconds=1)
    wait = pace.wait("waits")
    assert wait > 0
    clock.now += wait / 2
    assert pace.wait("waits") == wait / 2
    clock.now += wait / 2
    assert pace.wait("waits") == 0


def test_an_image_after_an_event_goes_before_images_without() -> None:
    """After a list at the start of the server, hundreds of images wait whose inspects nobody needs soon."""
    pace = ImagePace(clock=Clock())
    for number in range(50):
        pace.wait(str(number), patient=True)
        pace.end(str(number), seconds=1)
    assert pace.wait("49", patient=True) > 4000
    assert pace.wait("changed") <= 100
    assert pace.wait("changed, too") <= 200


def test_after_a_list_no_turn_is_left() -> None:
    clock = Clock()
    pace = ImagePace(clock=clock)
    for number in range(20):
        pace.wait(str(number))
        pace.end(str(number), seconds=1)
    assert pace.wait("later") > 1000
    pace.clear()
    assert pace.wait("later") == 0


def test_a_dropped_turn_is_assigned_anew() -> None:
    clock = Clock()
    pace = ImagePace(clock=clock)
    inspect(pace, "image", seconds=0.001)
    assert pace.wait("image") == QUIET_SECONDS
    pace.drop("image")
    clock.now += QUIET_SECONDS
    assert pace.wait("image") == 0


def test_a_docker_that_hung_does_not_delay_later_images_for_hours() -> None:
    """Ten seconds without an answer, and then twenty images are loaded."""
    clock = Clock()
    pace = ImagePace(clock=clock)
    inspect(pace, "times out", seconds=10)
    assert max(pace.wait(str(number)) for number in range(20)) < 2000
