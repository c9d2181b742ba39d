import pytest

from shim.base.times import SECOND
from shim.stats_cache import INTERVAL, CpuHistory, LayerUsage, Point, PrefetchCache, StatsCache
from tests.clock import Clock

BORN = 1000 * SECOND


def history(*points: tuple[float, float]) -> CpuHistory:
    """Points of (seconds after birth, seconds of CPU time)."""
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


def test_an_answer_is_returned_while_it_is_fresh() -> None:
    clock = Clock(0)
    cache = PrefetchCache[str](freshness=10, clock=clock)
    assert cache.get("a") is None

    cache.put("a", "answer")
    clock.now = 10
    assert cache.get("a") == "answer"
    clock.now = 10.1
    assert cache.get("a") is None


def test_an_answer_is_new_once_and_for_half_a_second() -> None:
    now = Clock(100.0)
    shelf = PrefetchCache[int](
        freshness=10, clock=now, timestamp=lambda at: at * SECOND // 10, wall=lambda: int(now.now * SECOND)
    )
    shelf.put("a", 999)
    assert shelf.is_new("a", 999)
    assert shelf.note_returned("a", 999) == 999
    assert shelf.is_new("a", 999)
    now.now = 100.5
    assert not shelf.is_new("a", 999)
    assert shelf.is_new("a", 1000)
    assert shelf.is_new("b", 999)
    assert not shelf.is_new("a", 998)


def test_a_replaced_answer_keeps_its_expiry() -> None:
    clock = Clock(0)
    shelf = PrefetchCache[str](freshness=10, clock=clock)
    shelf.note_returned("a", "read now")
    assert shelf.get("a") is None
    shelf.put("a", "kept")
    clock.now = 9
    shelf.note_returned("a", "renewed")
    assert shelf.get("a") == "renewed"
    clock.now = 11
    assert shelf.get("a") is None


def test_a_list_that_is_requested_every_few_seconds_is_watched() -> None:
    clock = Clock(0)
    requests: list[float] = []
    cache = PrefetchCache[str](freshness=INTERVAL, clock=clock, on_watched=lambda: requests.append(clock.now))
    watched = []
    for clock.now in (100, 110, 111, 112, 122):
        cache.touch()
        watched.append(cache.is_watched)

    assert watched == [False, False, True, True, False]
    assert requests == [111, 112]


def test_a_served_answer_is_renewed() -> None:
    clock = Clock(100)
    cache = PrefetchCache[float](
        freshness=10,
        clock=clock,
        timestamp=lambda at: int(at * SECOND),
        wall=lambda: int(clock.now * SECOND),
    )
    for key in ("returned", "just read", "ended", "expired", "not returned"):
        cache.put(key, 100.0)
        if key != "not returned":
            cache.note_returned(key, 100.0)
    clock.now = 109
    cache.note_returned("just read", 108.75)

    def renewed(_: float) -> float:
        return clock.now

    cache.renew("returned", renewed)
    cache.renew("just read", renewed)
    cache.renew("ended", lambda _: None)
    cache.renew("not returned", renewed)
    cache.renew("unknown", renewed)

    assert [cache.get(key) for key in ("returned", "just read", "ended")] == [109, 108.75, 100]
    assert [cache.get(key) for key in ("not returned", "unknown")] == [100, None]
    assert cache.is_new("returned", 109)
    clock.now = 110
    cache.renew("returned", renewed)
    assert cache.get("returned") == 109  # it has not been served yet
    clock.now = 111
    cache.renew("expired", renewed)
    assert cache.get("expired") is None


def test_lists_are_prefetched_for_a_minute_after_the_last_request() -> None:
    clock = Clock(0)
    cache = PrefetchCache[str](freshness=INTERVAL, clock=clock)
    wanted = [cache.requested_recently]
    cache.touch()
    for clock.now in (59, 61):
        wanted.append(cache.requested_recently)

    assert wanted == [False, True, False]
