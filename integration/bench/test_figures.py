"""Medians, ratios and bars from invented timings."""

import pytest

from integration.bench import figures
from integration.bench.figures import IMAGE_PAIRS, PAIRS, Footprint, Phase
from integration.bench.timings import Timings


def timings(**took: list[float]) -> Timings:
    made = Timings()
    made.took.update(took)
    return made


def whole(side: str, ms: float) -> Timings:
    """Return timings that have every call of a side, each taking `ms`."""
    made = Timings()
    for pair in PAIRS:
        made.took.update({name: [ms] for name in (pair.floor if side == "floor" else pair.server)})
    return made


def whole_phase(*, floor: list[float], server: list[float], pods: int = 0) -> Phase:
    timed_rounds = [whole("floor", ms) for ms in floor], [whole("server", ms) for ms in server]
    return figures.phase(pods=pods, timed_rounds=timed_rounds)


def footprint(rss_mib: float, *, when: str = "after start") -> Footprint:
    return Footprint(when=when, rss_mib=rss_mib, threads=1, descriptors=1, cpu_seconds=0)


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        ([7.0], 0.95, 7.0),
        ([7.0], 0.25, 7.0),
        ([3.0, 1.0, 2.0], 0.95, 3.0),
        ([float(n) for n in range(100, 0, -1)], 0.95, 95.0),
        ([float(n) for n in range(100, 0, -1)], 0.25, 25.0),
    ],
    ids=["one", "lower of one", "few", "hundred", "lower of a hundred"],
)
def test_a_percentile_is_a_measured_value(values: list[float], share: float, wanted: float) -> None:
    assert figures.ranked(values, share) == wanted


def test_a_call_is_summarized_over_all_rounds() -> None:
    timed_rounds = [whole("floor", 1.0), whole("floor", 5.0), whole("floor", 2.0)]
    call = next(
        c
        for c in figures.phase(pods=0, timed_rounds=(timed_rounds, [whole("server", 1.0)] * 3)).calls
        if c.name == "CNI ADD"
    )

    assert (call.side, call.count, call.median_ms, call.p95_ms) == ("floor", 3, 2.0, 5.0)


def test_run_pod_sandbox_is_compared_with_all_calls_of_the_floor() -> None:
    ratio = next(r for r in whole_phase(floor=[10.0], server=[44.0]).ratios if r.name == "RunPodSandbox")

    assert (ratio.floor_ms, ratio.server_ms, ratio.of_medians) == (40.0, 44.0, 1.1)


def test_pairs_are_compared_within_their_round() -> None:
    # The machine becomes ten times slower: both sides drift alike, and each round's ratio stays.
    ratio = whole_phase(floor=[1.0, 10.0, 1.0], server=[2.0, 20.0, 30.0]).ratios[1]

    assert ratio.of_medians == pytest.approx(5.0)
    assert ratio.of_pairs == pytest.approx(0.5)


def test_one_slow_round_does_not_change_the_quartiles() -> None:
    ratio = whole_phase(floor=[1.0, 1.0, 1.0, 1.0], server=[4.0, 9.0, 9.0, 9.0]).ratios[1]

    assert (ratio.of_quartiles, ratio.of_medians) == (1.0, 2.25)


def test_a_call_made_several_times_in_a_round_counts_once() -> None:
    floor, server = whole("floor", 1.0), whole("server", 1.0)
    server.took["ListContainers"] = [4.0, 2.0, 9.0]
    ratio = figures.phase(pods=0, timed_rounds=([floor], [server])).ratios[-1]

    assert (ratio.name, ratio.server_ms) == ("ListContainers", 4.0)


def test_every_promise_is_checked_in_every_phase() -> None:
    phases = [whole_phase(floor=[1.0], server=[1.0]), whole_phase(floor=[1.0], server=[9.0], pods=50)]
    bars = {bar.name: bar for bar in figures.bars(phases, footprints=[footprint(80.0), footprint(90.5, when="later")])}

    assert {name: bar.met for name, bar in bars.items()} == {
        "run, create, start, alone": True,
        "stop and removal, alone": True,
        "ExecSync, new client, alone": False,
        "run, create, start, 50 pods present": False,
        "stop and removal, 50 pods present": False,
        "ExecSync, new client, 50 pods present": False,
        "server RSS, later": False,
    }
    assert bars["run, create, start, alone"].value == pytest.approx(0.5)  # three calls compared to six


def test_many_pods_at_once_have_a_bar() -> None:
    load = figures.AtOnce(pods=40, at_once=8, floor_seconds=6.0, server_seconds=5.7)
    bar = figures.at_once_bar(load)
    assert (bar.name, bar.met) == ("40 pods, 8 at a time", False)
    assert bar.value == pytest.approx(0.95)


def test_a_bar_is_met_up_to_its_limit() -> None:
    assert figures.bars([], footprints=[footprint(90.0)])[0].met


def test_a_failed_block_is_not_timed() -> None:
    made = timings()
    with pytest.raises(ValueError, match="no"), made.timed("call"):
        raise ValueError("no")

    assert made.took == {}


def test_a_call_returns_its_result_and_is_timed() -> None:
    made = timings(call=[1.0])

    assert made.call("call", lambda: "result") == "result"
    assert len(made.took["call"]) == 2
    assert made.took["call"][1] >= 0


def test_pulls_and_the_list_have_bars() -> None:
    floor, server = Timings(), Timings()
    for pair, ms in zip(IMAGE_PAIRS, (11.5, 10.5), strict=True):
        floor.took[pair.floor[0]] = [10.0]
        server.took[pair.server[0]] = [ms]
    images = figures.images(([floor], [server]), present=200, lists=[9.0, 3.0, 4.0])
    assert [(bar.name, bar.value, bar.met) for bar in figures.image_bars(images)] == [
        ("PullImage, image present", 1.15, False),
        ("PullImage, new image", 1.05, True),
        ("ListImages, 200 images", 4.0, True),
    ]


def test_sides_are_compared_by_their_medians_and_their_ratios_to_the_floor() -> None:
    timed_rounds = {
        "floor": [whole("floor", ms) for ms in (10.0, 30.0, 20.0)],
        "server": [whole("server", ms) for ms in (5.0, 15.0, 10.0)],
        "another": [whole("server", ms) for ms in (40.0, 40.0, 1.0)],
    }
    (row,) = figures.compared([pair for pair in PAIRS if pair.name == "ExecSync"], timed_rounds)

    assert row.took_ms == {"floor": 20.0, "server": 10.0, "another": 40.0}
    assert row.of_floor == {"floor": 1.0, "server": 0.5, "another": 2.0}


def test_a_call_without_a_floor_is_compared_among_the_servers() -> None:
    made = timings(ListPodSandbox=[3.0, 1.0, 2.0])
    pair = figures.Pair("ListPodSandbox", ("ListPodSandbox",), ())
    (row,) = figures.compared([pair], {"floor": [Timings()], "server": [made], "another": [made]})

    assert row.took_ms == {"server": 2.0, "another": 2.0}
    assert row.of_floor == {}


def test_compared_calls_have_unique_names() -> None:
    names = [pair.name for pair in figures.COMPARED]

    assert len(names) == len(set(names))
    assert {figures.START, figures.STOP, "ExecSync", "ListContainers", "ListPodSandbox"} <= set(names)
