"""Bars from invented samples."""

import pytest

from integration.node.processes import Size
from integration.soak import figures
from integration.soak.figures import Phase, Report, Sample


def sample(
    *, threads: int = 20, descriptors: int = 20, rss_mib: float = 60.0, processes: dict[str, int] | None = None
) -> Sample:
    size = Size(threads=threads, descriptors=descriptors, rss_mib=rss_mib)
    return Sample(server=size, log_process=size, processes=processes or {"dockerd": 1})


def report(after: Sample, *, failures: dict[str, int] | None = None) -> Report:
    phases = [Phase(name="probes", count=10, seconds=1.0, rss_mib=60.0, failures=failures or {})]
    left_behind = figures.processes_left(sample(), after)
    bars = figures.bars(phases, before=sample(), after=after, left_behind=left_behind)
    return Report(phases=phases, before=sample(), after=after, left_behind=left_behind, bars=bars)


@pytest.mark.parametrize(
    ("made", "missed"),
    [
        (report(sample()), 0),
        (report(sample(threads=21, descriptors=21, rss_mib=63.0)), 0),
        (report(sample(threads=22)), 2),
        (report(sample(descriptors=22)), 2),
        (report(sample(rss_mib=63.1)), 2),
        (report(sample(processes={"dockerd": 1, "sleep": 3})), 1),
        (report(sample(processes={})), 0),
        (report(sample(), failures={"UNKNOWN": 1}), 1),
    ],
    ids=["as before", "within", "threads", "descriptors", "memory", "a process", "fewer processes", "a failure"],
)
def test_a_bar_is_missed_above_its_limit(made: Report, missed: int) -> None:
    assert sum(not bar.met for bar in made.bars) == missed
    assert made.passed is (missed == 0)


def test_the_report_lists_leftovers() -> None:
    made = report(sample(processes={"dockerd": 2, "sleep": 3}), failures={"UNKNOWN no such thing": 2})
    table = figures.as_table(made)
    assert "left behind: processes: 3 sleep" in table
    assert "2 x UNKNOWN no such thing" in table
