import pytest

from shim.base.times import SECOND
from shim.stats_cache import INTERVAL, CpuHistory, LayerUsage, Point, PrefetchCache, StatsCache
from tests.clock import Clock

BORN = 1000 * SECOND


def history(*points: tuple[float, float]) -> CpuHistory:
    """Return a history of points (seconds after creation, seconds of CPU time)."""
    made = CpuHistory()
    for at, usage in points:
        made.note("c", point(at, usage))
    return made


def point(at: float, usage: float) -> Point:
    return Point(BORN + int(at * SECOND), int(usage * SECOND))


@pytest.mark.parametrize(
    ("points", "now", "cores"),
    [
        ([], (4, 2), 0.5),
        ([], (0.005, 0.02), 0.02),
        ([(100, 30)], (105, 35), 1.0),
        ([(100, 30), (105, 31), (110, 36)], (110.5, 36.5), 1.0),
        ([(100, 30), (105, 30), (110, 30), (115, 35)], (119.9, 35), 5 / 9.9),
        ([(100, 30)], (100.2, 30.2), 30.2 / 100.2),
        ([(100, 30)], (500, 70), 0.1),
        ([(100, 30)], (105, 10), 0),
        ([(100, 1.0), (109, 1.1), (60, 1.3)], (69, 1.4), 0.1 / 9),
        ([(-3, 90)], (5, 1), 0.2),
        ([(-5, 1)], (-1, 2), 0.25),
        ([], (-1, 2), 0),
    ],
    ids=[
        "first sample",
        "first sample at once",
        "one point",
        "longest window below ten seconds",
        "older points do not count",
        "too near",
        "after a pause",
        "counter started over",
        "later points are before the clock was set back",
        "started again",
        "seen after the clock was set back",
        "clock set back",
    ],
)
def test_the_rate_is_computed_over_the_longest_window(
    points: list[tuple[float, float]], now: tuple[float, float], cores: float
) -> None:
    assert history(*points).rate("c", point(*now), born_at=BORN) == pytest.approx(cores * SECOND, abs=1)


def test_only_the_last_points_are_kept() -> None:
    many = history(*[(second, 0) for second in range(100)])

    assert many.last("c") == point(99, 0)
    assert many.rate("c", point(104, 7), born_at=BORN) == 7 * SECOND // 8


def test_removed_keys_are_forgotten() -> None:
    samples = StatsCache()
    samples.cpu.note("a", point(0, 0))
    samples.cpu.note("b", point(0, 0))
    samples.layers["a"] = LayerUsage(at=1, used_bytes=2, inodes=3, store="/s")

    samples.keep_only({"b"})

    assert samples.cpu.last("a") is None
    assert samples.cpu.last("b") is not None
    assert samples.layers == {}


def read_at(answer: int) -> int:
    """Return the timestamp of an answer: here the answer itself."""
    return answer


def test_the_answer_of_a_pass_is_returned_while_it_is_fresh() -> None:
    clock = Clock(0)
    cache = PrefetchCache[int](freshness=10, timestamp=read_at, clock=clock)
    assert cache.get("a") is None

    cache.put("a", 1)
    clock.now = 10
    assert cache.get("a") == 1
    clock.now = 10.1
    assert cache.get("a") is None


def answered(
    cache: PrefetchCache[int], *, read: int | None = 50, current: int | None = 60, holds: bool = True
) -> int | None:
    return cache.answer("a", read=lambda: read, refresh=lambda _: current, holds=lambda _: holds)


def test_the_answer_of_a_pass_is_returned_once_and_then_refreshed() -> None:
    cache = PrefetchCache[int](freshness=10, timestamp=read_at, clock=Clock(0))
    cache.put("a", 10)
    assert [answered(cache), answered(cache), answered(cache, current=70)] == [10, 60, 70]

    cache.put("a", 80)
    assert [answered(cache), answered(cache, current=90)] == [80, 90]


def test_an_answer_older_than_the_last_is_refreshed() -> None:
    cache = PrefetchCache[int](freshness=10, timestamp=read_at, clock=Clock(0))
    assert answered(cache, read=50) == 50
    cache.put("a", 49)
    assert answered(cache, current=60) == 60


def test_an_invalid_answer_is_read_again() -> None:
    cache = PrefetchCache[int](freshness=10, timestamp=read_at, clock=Clock(0))
    cache.put("a", 10)
    assert answered(cache, holds=False) == 50


def test_nothing_is_returned_for_a_removed_container() -> None:
    cache = PrefetchCache[int](freshness=10, timestamp=read_at, clock=Clock(0))
    assert answered(cache, read=None) is None
    cache.put("a", 10)
    assert [answered(cache), answered(cache, current=None)] == [10, None]


def test_answers_are_prefetched_for_a_minute_after_the_last_request() -> None:
    clock = Clock(0)
    cache = PrefetchCache[int](freshness=INTERVAL, timestamp=read_at, clock=clock)
    wanted = [cache.requested_recently]
    cache.touch()
    for clock.now in (59, 61):
        wanted.append(cache.requested_recently)

    assert wanted == [False, True, False]
