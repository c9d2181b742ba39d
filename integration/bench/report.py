"""The report as a table and as JSON. Pure."""

from collections.abc import Iterator

import msgspec

from integration.bench.figures import (
    FLOOR,
    SERVER,
    AtOnce,
    Bar,
    Call,
    Compared,
    Footprint,
    Images,
    Load,
    Phase,
    Ratio,
    many,
    present,
)

_NAME = 40
_SIDE, _RATIO = 12, 6


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was measured."""

    cpus: int
    memory_mib: int
    kernel: str
    python: str
    load_before: float
    """Runnable tasks over the last minute; other work makes the figures worse."""
    load_after: float


class Docker(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that was measured."""

    version: str
    api: str
    storage: str
    cgroups: str


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """Another server that was measured."""

    name: str
    version: str
    """As the program prints it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run. Times are in the unit that the field's name ends with."""

    machine: Machine
    engine: Docker
    rounds: int
    others: list[Other]
    phases: list[Phase]
    footprints: list[Footprint]
    load: Load
    at_once: AtOnce
    images: Images
    compared: list[Compared]
    """Floor, server and others, without other pods present."""
    left_behind: list[str]
    """Containers, reservations, namespaces and state that outlived their pods."""
    bars: list[Bar]


def as_json(report: Report) -> bytes:
    """Return the report as indented JSON, with times rounded to a microsecond."""
    plain = msgspec.json.decode(msgspec.json.encode(report))
    return msgspec.json.format(msgspec.json.encode(_rounded(plain)), indent=2) + b"\n"


def as_table(report: Report) -> str:
    """Return the report as text."""
    phases = (line for phase in report.phases for line in _phase(phase))
    return "\n".join([*_head(report), *phases, *_images(report.images), *_compared(report), *_rest(report)])


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def _head(report: Report) -> Iterator[str]:
    machine, engine = report.machine, report.engine
    yield f"Docker Engine {engine.version}, API {engine.api}, {engine.storage}, cgroups {engine.cgroups}"
    yield (
        f"{machine.cpus} CPUs, {machine.memory_mib} MiB, Linux {machine.kernel}, Python {machine.python}, "
        f"load {machine.load_before:.1f} before and {machine.load_after:.1f} after"
    )
    for other in report.others:
        yield f"beside {other.name}: {other.version}"
    yield (
        f"{report.rounds} rounds of floor and server in turn; times in ms; "
        "ratios of the medians, within rounds, of the lower quartiles"
    )


def _phase(phase: Phase) -> Iterator[str]:
    yield ""
    yield f"{present(phase.pods):{_NAME}}{'floor':>9}{'server':>9}{'ratio':>8}{'pairs':>8}{'q1':>8}"
    yield from map(_ratio, phase.ratios)
    for side in ("floor", "server"):
        yield ""
        yield f"{side + ', ' + present(phase.pods):{_NAME}}{'median':>9}{'p95':>9}{'n':>8}"
        yield from (_call(call) for call in phase.calls if call.side == side)


def _images(images: Images) -> Iterator[str]:
    yield ""
    yield f"{'images':{_NAME}}{'floor':>9}{'server':>9}{'ratio':>8}{'pairs':>8}{'q1':>8}"
    yield from map(_ratio, images.pulls)
    yield f"  {f'ListImages, {images.present} images':{_NAME - 2}}{'':9}{images.list_ms:9.1f}"


def _compared(report: Report) -> Iterator[str]:
    """Yield the table of all sides, if other servers were measured."""
    if not report.others:
        return
    sides = [FLOOR, SERVER, *(other.name for other in report.others)]
    yield ""
    heads = (f"{side:>{_SIDE}}{'':{_RATIO}}" for side in sides)
    yield f"{'medians, and ratios to the floor':{_NAME}}{''.join(heads)}".rstrip()
    for row in report.compared:
        cells = (_cell(row, side) for side in sides)
        yield f"  {row.name:{_NAME - 2}}{''.join(cells)}".rstrip()


def _cell(row: Compared, side: str) -> str:
    if side not in row.took_ms:
        return " " * (_SIDE + _RATIO)
    ratio = f"{row.of_floor[side]:{_RATIO}.2f}" if side in row.of_floor and side != FLOOR else " " * _RATIO
    return f"{row.took_ms[side]:{_SIDE}.1f}{ratio}"


def _ratio(ratio: Ratio) -> str:
    times = f"{ratio.floor_ms:9.1f}{ratio.server_ms:9.1f}"
    return f"  {ratio.name:{_NAME - 2}}{times}{ratio.of_medians:8.2f}{ratio.of_pairs:8.2f}{ratio.of_quartiles:8.2f}"


def _call(call: Call) -> str:
    return f"  {call.name:{_NAME - 2}}{call.median_ms:9.1f}{call.p95_ms:9.1f}{call.count:8}"


def _rest(report: Report) -> Iterator[str]:
    yield ""
    yield f"{'server':{_NAME}}{'RSS MiB':>9}{'threads':>9}{'fds':>8}{'CPU s':>8}"
    for taken in report.footprints:
        yield (
            f"  {taken.when:{_NAME - 2}}{taken.rss_mib:9.1f}{taken.threads:9}{taken.descriptors:8}"
            f"{taken.cpu_seconds:8.1f}"
        )
    load = report.load
    yield ""
    yield (
        f"{load.pods} pods, {load.at_once} at a time: up in {load.up_seconds:.1f} s, down in {load.down_seconds:.1f} s"
    )
    both = report.at_once
    yield (f"{many(both)}: up in {both.floor_seconds:.1f} s by the floor, in {both.server_seconds:.1f} s by the server")
    yield ""
    yield f"{'bar':{_NAME}}{'at most':>9}{'is':>9}"
    for bar in report.bars:
        verdict = "met" if bar.met else "MISSED"
        yield f"  {bar.name:{_NAME - 2}}{bar.limit:9.2f}{bar.value:9.2f}  {bar.unit:8}{verdict}"
    if report.left_behind:
        yield ""
        yield f"left behind: {', '.join(report.left_behind)}"
