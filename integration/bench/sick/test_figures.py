"""Medians, percentiles and bars from invented times."""

import msgspec
import pytest

from integration.bench.report import Docker, Machine
from integration.bench.sick import figures
from integration.bench.sick.figures import FIRST, READS, Read, Report, Restart, Restarts, Waits


def restarts(*seconds: float) -> Restarts:
    return Restarts(name="SIGTERM", rounds=[Restart(exit=0.5, answers=dict.fromkeys(FIRST, each)) for each in seconds])


def report(*, answers: tuple[float, ...] = (1.0, 2.0), reads: list[Read] | None = None) -> Report:
    if reads is None:
        reads = [figures.read_of(name, [1.0, 2.0], refused=0) for name in (*READS, "floor: Docker")]
    waits = Waits(taken_seconds=2.5, stops=600, stops_refused=3, execs=200, execs_refused=0)
    return Report(
        machine=Machine(cpus=2, memory_mib=1, kernel="6", python="3.11", load_before=1, load_after=2),
        engine=Docker(version="28", api="1.51", storage="overlay2", cgroups="v1 by cgroupfs"),
        containers=300,
        restarts=[restarts(*answers)],
        restart_floor={"Python loads the server": 0.4},
        waits=waits,
        reads=reads,
        bars=figures.bars(restarts=[restarts(*answers)], reads=reads, waits=waits),
    )


def missed(made: Report) -> list[str]:
    return [bar.name for bar in made.bars if not bar.met]


def test_times_are_summarized() -> None:
    read = figures.read_of("Status", [float(n) for n in range(1, 201)], refused=3)
    assert (read.median_ms, read.p99_ms, read.count, read.refused) == (102.0, figures.REFUSED_MS, 203, 3)


def test_refused_reads_count_as_timeouts() -> None:
    read = figures.read_of("Status", [], refused=5)
    assert (read.p99_ms, read.count) == (figures.REFUSED_MS, 5)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (report(), []),
        (report(answers=(1.0, 1.0, 3.1)), [f"SIGTERM, {name}" for name in FIRST]),
        (
            report(reads=[figures.read_of("Status", [60.0], refused=0)]),
            ["p99 of Status, 600 stops and 200 execs wait"],
        ),
        (
            report(reads=[figures.read_of("Status", [1.0] * 999, refused=1)]),
            ["reads refused meanwhile"],
        ),
        (report(reads=[figures.read_of("floor: Docker", [60.0], refused=0)]), []),
    ],
    ids=["all met", "one slow round", "slow reads", "refused", "slow floor"],
)
def test_a_bar_is_missed_above_its_limit(made: Report, expected: list[str]) -> None:
    assert missed(made) == expected


def test_the_report_is_a_table_and_json() -> None:
    made = report()
    table = figures.as_table(made)
    assert "600 StopContainer and 200 ExecSync pending; 3 and 0 were refused before" in table
    assert max(map(len, table.splitlines())) <= 120
    assert msgspec.json.decode(figures.as_json(made), type=Report) == made
