"""The figures and the promised limits, as a table and as JSON. Pure."""

import statistics
from collections.abc import Iterator, Sequence

import msgspec

from integration.bench.figures import Bar, bar_of, ranked
from integration.bench.report import Docker, Machine

READ_MS = 50.0
"""Bound on the 99th percentile of reads while stops and execs are pending."""
REFUSED_MS = 5000.0
"""Duration that a refused read counts as: a client's timeout."""
ANSWER_SECONDS = 3.0
"""Bound on the time from the end of a server to the first answers of its successor."""

READS = ("ListContainers", "ListPodSandbox", "Status")
FIRST = ("Version", "Status", "ListPodSandbox")
_NAME = 58


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """One call, many times."""

    name: str
    median_ms: float
    p99_ms: float
    count: int
    refused: int = 0
    """Calls that got no answer."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """The calls that were pending while the reads were timed, and the refused calls."""

    taken_seconds: float
    """Seconds from the first of these calls, all sent at once, to the answer of a read sent after them."""
    stops: int
    stops_refused: int
    execs: int
    execs_refused: int


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a server, and the start of its successor after its exit; seconds from the signal on.

    A missing answer counts as the seconds waited for it.
    """

    exit: float
    answers: dict[str, float]


class Restarts(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds of a kind of restart."""

    name: str
    rounds: list[Restart]

    def of(self, answer: str) -> list[float]:
        """Return the seconds to an answer, in the order of the rounds."""
        return [each.answers[answer] for each in self.rounds]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    machine: Machine
    engine: Docker
    containers: int
    """Running containers during the restarts, pause containers included."""
    restarts: list[Restarts]
    restart_floor: dict[str, float]
    """Seconds of the work that every start has to do."""
    waits: Waits
    reads: list[Read]
    bars: list[Bar]


def read_of(name: str, times: Sequence[float], *, refused: int) -> Read:
    """Summarize times in milliseconds; a refused call counts as REFUSED_MS."""
    times = [*times, *[REFUSED_MS] * refused]
    return Read(
        name=name,
        median_ms=statistics.median(times),
        p99_ms=ranked(times, 0.99),
        count=len(times),
        refused=refused,
    )


def bars(*, restarts: Sequence[Restarts], reads: Sequence[Read], waits: Waits) -> list[Bar]:
    """Compare the figures with the promised limits; for restarts the slowest round counts."""
    under_way = f"{waits.stops} stops and {waits.execs} execs wait"
    times = (
        bar_of(f"{kind.name}, {answer}", unit="s", limit=ANSWER_SECONDS, value=max(kind.of(answer)))
        for kind in restarts
        for answer in FIRST
    )
    p99 = (bar_of(f"p99 of {read.name}, {under_way}", unit="ms", limit=READ_MS, value=read.p99_ms) for read in reads)
    refused = sum(read.refused for read in reads if read.name in READS)
    named = (each for each in p99 if any(each.name.startswith(f"p99 of {name},") for name in READS))
    return [*times, *named, bar_of("reads refused meanwhile", unit="", limit=0, value=refused)]


def as_json(report: Report) -> bytes:
    """Return the report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def as_table(report: Report) -> str:
    """Return the report as text."""
    return "\n".join([*_head(report), *_restarts(report), *_reads(report), *_bars(report)])


def _head(report: Report) -> Iterator[str]:
    machine, engine = report.machine, report.engine
    yield f"Docker Engine {engine.version}, API {engine.api}; {machine.cpus} CPUs, Python {machine.python}"
    yield f"load {machine.load_before:.1f} before and {machine.load_after:.1f} after"


def _restarts(report: Report) -> Iterator[str]:
    yield ""
    yield f"{f'seconds from the signal, {report.containers} containers':{_NAME}}{'median':>9}{'worst':>9}{'n':>8}"
    for kind in report.restarts:
        exits = [each.exit for each in kind.rounds]
        for name, times in (("exit of the old server", exits), *((each, kind.of(each)) for each in FIRST)):
            called = f"{kind.name}, {name}"
            yield f"  {called:{_NAME - 2}}{statistics.median(times):9.2f}{max(times):9.2f}{len(times):8}"
    for name, seconds in report.restart_floor.items():
        yield f"  {f'floor: {name}':{_NAME - 2}}{seconds:9.2f}"


def _reads(report: Report) -> Iterator[str]:
    waits = report.waits
    yield ""
    yield (
        f"{waits.stops} StopContainer and {waits.execs} ExecSync pending; "
        f"{waits.stops_refused} and {waits.execs_refused} were refused before"
    )
    yield f"a read sent after them was answered after {waits.taken_seconds:.1f} s"
    yield f"{'call, ms':{_NAME}}{'median':>9}{'p99':>9}{'n':>8}{'refused':>9}"
    for read in report.reads:
        yield f"  {read.name:{_NAME - 2}}{read.median_ms:9.2f}{read.p99_ms:9.2f}{read.count:8}{read.refused:9}"


def _bars(report: Report) -> Iterator[str]:
    yield ""
    yield f"{'bar':{_NAME}}{'at most':>9}{'is':>9}"
    for bar in report.bars:
        verdict = "met" if bar.met else "MISSED"
        yield f"  {bar.name:{_NAME - 2}}{bar.limit:9.2f}{bar.value:9.2f}  {bar.unit:5}{verdict}"
