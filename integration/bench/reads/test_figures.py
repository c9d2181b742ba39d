"""Medians, growth and bars from invented times."""

import msgspec
import pytest

from integration.bench.figures import Footprint
from integration.bench.reads import figures
from integration.bench.reads.figures import LISTS, STATUSES, Read, Relist, Report
from integration.bench.report import Docker, Machine


def footprint(*, cpu_seconds: float, rss_mib: float = 60, threads: int = 20) -> Footprint:
    return Footprint(when="", rss_mib=rss_mib, threads=threads, descriptors=20, cpu_seconds=cpu_seconds)


def relist(*, cpu_seconds: float = 1.0, rss_mib: float = 60, threads: int = 20) -> Relist:
    after = footprint(cpu_seconds=10 + cpu_seconds, rss_mib=rss_mib, threads=threads)
    return Relist(seconds=50, before=footprint(cpu_seconds=10), after=after, events=100)


def measured(*, few_ms: float, many_ms: float) -> list[Read]:
    names = (*LISTS, *STATUSES)
    few = figures.reads({name: [few_ms] for name in names}, containers=100)
    return few + figures.reads({name: [many_ms] for name in names}, containers=300)


def report(*, many_ms: float = 2.0, of: Relist | None = None) -> Report:
    reads, exits = measured(few_ms=1.0, many_ms=many_ms), figures.reads({"exit": [7.0]}, containers=300)
    busy = figures.reads({"Version": [3.0]}, containers=500)
    of = of or relist()
    return Report(
        machine=Machine(cpus=2, memory_mib=1, kernel="6", python="3.11", load_before=1, load_after=2),
        engine=Docker(version="28", api="1.51", storage="overlay2", cgroups="v1 by cgroupfs"),
        reads=reads,
        relist=of,
        exits=exits,
        busy=busy,
        stops=200,
        bars=figures.bars(reads, relist=of, exits=exits, busy=busy, stops=200),
    )


def missed(made: Report) -> list[str]:
    return [bar.name for bar in made.bars if not bar.met]


def test_calls_are_summarized() -> None:
    (read,) = figures.reads({"Version": [float(n) for n in range(1, 101)]}, containers=3)
    assert (read.median_ms, read.p95_ms, read.count, read.containers) == (50.5, 95.0, 100, 3)


def test_growth_spans_the_smallest_and_the_largest_number() -> None:
    assert figures.growth_us(measured(few_ms=1.0, many_ms=2.0), "ListContainers") == pytest.approx(5.0)


def test_processor_time_is_relative_to_the_duration() -> None:
    assert relist(cpu_seconds=1.0).core_percent == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (report(many_ms=1.2), []),
        (report(many_ms=2.0), [f"{name}, 300 containers" for name in STATUSES]),
        (report(many_ms=1.2, of=relist(cpu_seconds=2)), ["relists, of a core"]),
        (report(many_ms=1.2, of=relist(rss_mib=62)), ["relists, growth of RSS"]),
        (report(many_ms=1.2, of=relist(threads=21)), ["relists, growth of threads"]),
    ],
    ids=["all met", "slow statuses", "busy", "larger", "more threads"],
)
def test_a_bar_is_missed_above_its_limit(made: Report, expected: list[str]) -> None:
    assert missed(made) == expected


def test_lists_that_grow_too_fast_miss_their_bars() -> None:
    assert missed(report(many_ms=4.5))[-2:] == [f"{name}, each further container" for name in LISTS]


def test_the_report_is_a_table_and_json() -> None:
    made = report()
    table = figures.as_table(made)
    assert "relists for 50 s, 100 events: 2.00 % of a core" in table
    assert max(map(len, table.splitlines())) <= 120
    assert msgspec.json.decode(figures.as_json(made), type=Report) == made
