"""The figures and the promised limits, as a table and as JSON. Pure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from integration.bench.figures import Bar, Footprint, bar_of, ranked
from integration.bench.report import Docker, Machine

LIST_MS = 4.0
STATUS_MS = 1.5
GROWTH_US = 10.0
"""Microseconds that each further container may add to a list."""
EXIT_MS = 50.0
BUSY_MS = 10.0
"""Bound on reads while many stops wait."""
CORE_PERCENT = 3.0
RSS_GROWTH_MIB = 1.0
"""Bound on growth, above the normal variation of Python's allocator; a leak would exceed it in ten minutes."""

LISTS = ("ListContainers", "ListPodSandbox")
STATUSES = ("ContainerStatus", "PodSandboxStatus")
_NAME = 52


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """One call, many times."""

    name: str
    containers: int
    """Number of containers, pause containers included."""
    median_ms: float
    p95_ms: float
    count: int


class Relist(msgspec.Struct, frozen=True, kw_only=True):
    """Two lists a second for a while, with a subscriber of events and a container that starts and exits each second."""

    seconds: float
    before: Footprint
    after: Footprint
    events: int
    """Events that the subscriber received."""

    @property
    def core_percent(self) -> float:
        """Processor time of the server, in percent of a core."""
        return 100 * (self.after.cpu_seconds - self.before.cpu_seconds) / self.seconds


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    machine: Machine
    engine: Docker
    reads: list[Read]
    """Reads with some and with all pods, and Docker's list."""
    relist: Relist
    exits: list[Read]
    busy: list[Read]
    stops: int
    bars: list[Bar]


def reads(took: Mapping[str, Sequence[float]], *, containers: int) -> list[Read]:
    """Summarize times in milliseconds, by the name of the call."""
    return [
        Read(
            name=name,
            containers=containers,
            median_ms=statistics.median(times),
            p95_ms=ranked(times, 0.95),
            count=len(times),
        )
        for name, times in took.items()
    ]


def growth_us(measured: Sequence[Read], name: str) -> float:
    """Return the microseconds that each further container adds, between the smallest and the largest number."""
    of_name = sorted((read for read in measured if read.name == name), key=lambda read: read.containers)
    few, many = of_name[0], of_name[-1]
    return 1000 * (many.median_ms - few.median_ms) / (many.containers - few.containers)


def bars(
    measured: Sequence[Read], *, relist: Relist, exits: Sequence[Read], busy: Sequence[Read], stops: int
) -> list[Bar]:
    """Compare the figures with the promised limits."""
    most = max(read.containers for read in measured)
    full = {read.name: read for read in measured if read.containers == most}
    before, after = relist.before, relist.after
    return [
        *(bar_of(f"{name}, {most} containers", unit="ms", limit=LIST_MS, value=full[name].median_ms) for name in LISTS),
        *(
            bar_of(f"{name}, {most} containers", unit="ms", limit=STATUS_MS, value=full[name].median_ms)
            for name in STATUSES
        ),
        *(
            bar_of(f"{name}, each further container", unit="us", limit=GROWTH_US, value=growth_us(measured, name))
            for name in LISTS
        ),
        bar_of("relists, of a core", unit="%", limit=CORE_PERCENT, value=relist.core_percent),
        bar_of("relists, growth of RSS", unit="MiB", limit=RSS_GROWTH_MIB, value=after.rss_mib - before.rss_mib),
        bar_of("relists, growth of threads", unit="", limit=0, value=after.threads - before.threads),
        bar_of("relists, growth of descriptors", unit="", limit=0, value=after.descriptors - before.descriptors),
        *(
            bar_of(f"{read.name}, after Docker's event", unit="ms", limit=EXIT_MS, value=read.median_ms)
            for read in exits
        ),
        *(
            bar_of(f"{read.name}, {stops} stops under way", unit="ms", limit=BUSY_MS, value=read.median_ms)
            for read in busy
        ),
    ]


def as_json(report: Report) -> bytes:
    """Return the report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def as_table(report: Report) -> str:
    """Return the report as text."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    machine, engine, relist = report.machine, report.engine, report.relist
    yield f"Docker Engine {engine.version}, API {engine.api}; {machine.cpus} CPUs, Python {machine.python}"
    yield f"load {machine.load_before:.1f} before and {machine.load_after:.1f} after; times in ms, end to end"
    yield ""
    yield f"{'call':{_NAME}}{'median':>9}{'p95':>9}{'n':>8}"
    for read in (*report.reads, *report.exits, *report.busy):
        called = f"{read.name}, {read.containers} containers"
        yield f"  {called:{_NAME - 2}}{read.median_ms:9.2f}{read.p95_ms:9.2f}{read.count:8}"
    yield ""
    yield (
        f"relists for {relist.seconds:.0f} s, {relist.events} events: {relist.core_percent:.2f} % of a core, "
        f"RSS {relist.before.rss_mib:.1f} to {relist.after.rss_mib:.1f} MiB"
    )
    yield ""
    yield f"{'bar':{_NAME}}{'at most':>9}{'is':>9}"
    for bar in report.bars:
        verdict = "met" if bar.met else "MISSED"
        yield f"  {bar.name:{_NAME - 2}}{bar.limit:9.2f}{bar.value:9.2f}  {bar.unit:5}{verdict}"
