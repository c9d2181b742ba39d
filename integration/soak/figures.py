"""The figures and the promised limits. Pure."""

import math
from collections import Counter
from collections.abc import Iterator

import msgspec

from integration.bench.figures import Bar, bar_of
from integration.node.processes import Size

GROWTH = 1.05
"""Bound on the size of a process at the end, relative to its size after the warm-up."""
_NAME = 44


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The node at a moment without pods."""

    server: Size
    log_process: Size
    processes: dict[str, int]
    """Number of processes by name."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a phase, and its duration."""

    name: str
    count: int
    seconds: float
    rss_mib: float
    """The server's, at the end of the phase."""
    failures: dict[str, int]
    """Unexpected results, and how often each occurred."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run."""

    phases: list[Phase]
    before: Sample
    after: Sample
    left_behind: list[str]
    bars: list[Bar]

    @property
    def passed(self) -> bool:
        """Whether all promises are kept."""
        return all(bar.met for bar in self.bars)


def processes_left(before: Sample, after: Sample) -> list[str]:
    """Return the processes that became more."""
    more = Counter(after.processes) - Counter(before.processes)
    return [f"processes: {count} {name}" for name, count in sorted(more.items())]


def bars(phases: list[Phase], *, before: Sample, after: Sample, left_behind: list[str]) -> list[Bar]:
    """Compare the figures with the promised limits."""
    failures = sum(sum(phase.failures.values()) for phase in phases)
    return [
        *_growth("server", before.server, after.server),
        *_growth("log process", before.log_process, after.log_process),
        bar_of("left behind", unit="", limit=0, value=len(left_behind)),
        bar_of("calls with unexpected results", unit="", limit=0, value=failures),
    ]


def _growth(name: str, before: Size, after: Size) -> Iterator[Bar]:
    yield bar_of(f"{name}, threads", unit="", limit=math.ceil(before.threads * GROWTH), value=after.threads)
    yield bar_of(f"{name}, descriptors", unit="", limit=math.ceil(before.descriptors * GROWTH), value=after.descriptors)
    yield bar_of(f"{name}, RSS", unit="MiB", limit=before.rss_mib * GROWTH, value=after.rss_mib)


def as_table(report: Report) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"{'phase':{_NAME}}{'count':>9}{'seconds':>9}{'RSS MiB':>9}"
    for phase in report.phases:
        yield f"  {phase.name:{_NAME - 2}}{phase.count:9}{phase.seconds:9.0f}{phase.rss_mib:9.1f}"
        yield from (f"    {count} x {what}" for what, count in phase.failures.items())
    yield ""
    yield f"{'bar':{_NAME}}{'at most':>9}{'is':>9}"
    for bar in report.bars:
        verdict = "met" if bar.met else "MISSED"
        yield f"  {bar.name:{_NAME - 2}}{bar.limit:9.1f}{bar.value:9.1f}  {bar.unit:5}{verdict}"
    yield from (f"left behind: {each}" for each in report.left_behind)
