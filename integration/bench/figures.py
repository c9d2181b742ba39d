"""Computes medians, ratios and bars from timings. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from integration.bench.timings import Timings

FLOOR, SERVER = "floor", "server"
"""Names of the two sides of every run."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call on one side, over all rounds."""

    name: str
    side: str
    """`floor` or `server`."""
    count: int
    median_ms: float
    p95_ms: float


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of the server compared to the floor's calls for the same work."""

    name: str
    floor_ms: float
    """Median over the rounds of the sum of the calls."""
    server_ms: float
    of_medians: float
    of_pairs: float
    """Median of the ratios within each round, whose two sides ran in direct succession."""
    of_quartiles: float
    """Ratio of the lower quartiles: when others use the machine too, the faster rounds are more reliable."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds with `pods` other pods present."""

    pods: int
    calls: list[Call]
    ratios: list[Ratio]


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The server's resources at a moment."""

    when: str
    rss_mib: float
    threads: int
    descriptors: int
    """Without cgroup files: the server keeps several of them open for each running container."""
    cpu_seconds: float
    """Processor time since the server's start."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`pods` pods through the server, `at_once` at a time."""

    pods: int
    at_once: int
    up_seconds: float
    down_seconds: float


class AtOnce(msgspec.Struct, frozen=True, kw_only=True):
    """`pods` pods on either side, `at_once` at a time; medians over a few turns."""

    pods: int
    at_once: int
    floor_seconds: float
    server_seconds: float


class Images(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls compared to Docker's, and ListImages with many images."""

    pulls: list[Ratio]
    present: int
    """Number of images on the node for ListImages."""
    list_ms: float
    """Median of ListImages."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The same work on every side."""

    name: str
    took_ms: dict[str, float]
    """Medians by side; sides without such a call are missing."""
    of_floor: dict[str, float]
    """Ratios of the medians by side; empty if the floor has no such call."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A promise of speed or size: `value` is at most `limit`."""

    name: str
    unit: str
    limit: float
    value: float
    met: bool


class Pair(msgspec.Struct, frozen=True):
    """Names of the server's calls, and of the floor's calls for the same work."""

    name: str
    server: tuple[str, ...]
    floor: tuple[str, ...]
    limit: float | None = None


START, STOP = "run, create, start", "stop and removal"
"""Names of the two sums."""

_RUN = ("create pause", "start pause", "inspect pause", "CNI ADD")
_STOP = ("CNI DEL", "kill pause")
PAIRS = (
    Pair(
        START,
        ("RunPodSandbox", "CreateContainer", "StartContainer"),
        (*_RUN, "create container", "start container"),
        limit=0.88,
    ),
    Pair("RunPodSandbox", ("RunPodSandbox",), _RUN),
    Pair("CreateContainer", ("CreateContainer",), ("create container",)),
    Pair("StartContainer", ("StartContainer",), ("start container",)),
    Pair(
        STOP,
        ("StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"),
        ("stop container", *_STOP, "remove container", "remove pause"),
        limit=0.85,
    ),
    Pair("StopContainer", ("StopContainer",), ("stop container",)),
    Pair("StopPodSandbox", ("StopPodSandbox",), _STOP),
    Pair("RemoveContainer", ("RemoveContainer",), ("remove container",)),
    Pair("RemovePodSandbox", ("RemovePodSandbox",), ("remove pause",)),
    Pair("ExecSync", ("ExecSync",), ("exec",)),
    Pair("ExecSync, new client", ("ExecSync",), ("exec, new client",), limit=0.9),
    Pair("UpdateContainerResources", ("UpdateContainerResources",), ("update",)),
    Pair("ListContainers", ("ListContainers",), ("list containers",)),
)

IMAGE_PAIRS = (
    Pair("PullImage, image present", ("PullImage, image present",), ("pull, image present",), limit=1.1),
    Pair("PullImage, new image", ("PullImage, new image",), ("pull, new image",), limit=1.1),
)

_TIMED = {START, "RunPodSandbox", "CreateContainer", "StartContainer", STOP, "ExecSync", "ListContainers"}
_READS = ("ListPodSandbox", "PodSandboxStatus", "ContainerStatus", "ListImages")
COMPARED = (
    *(pair for pair in PAIRS if pair.name in _TIMED),
    *(Pair(name, (name,), ()) for name in _READS),
)
"""Calls that are compared with other servers too. The floor lacks the last calls."""

AT_ONCE_LIMIT = 0.9
RSS_LIMIT_MIB = 90.0
LIST_IMAGES_LIMIT_MS = 4.0


def phase(*, pods: int, timed_rounds: tuple[Sequence[Timings], Sequence[Timings]]) -> Phase:
    """Summarize rounds; `timed_rounds` are the floor's and the server's, in the order of the rounds."""
    floor, server = timed_rounds
    calls = [*_calls(FLOOR, floor), *_calls(SERVER, server)]
    return Phase(pods=pods, calls=calls, ratios=[_ratio(pair, floor=floor, server=server) for pair in PAIRS])


def images(
    timed_rounds: tuple[Sequence[Timings], Sequence[Timings]], *, present: int, lists: Sequence[float]
) -> Images:
    """Summarize the pulls of the floor and the server, and `lists` in milliseconds."""
    floor, server = timed_rounds
    pulls = [_ratio(pair, floor=floor, server=server) for pair in IMAGE_PAIRS]
    return Images(pulls=pulls, present=present, list_ms=statistics.median(lists))


def image_bars(images: Images) -> list[Bar]:
    """Compare pulls and ListImages with the promised limits."""
    limits = {pair.name: pair.limit or 0.0 for pair in IMAGE_PAIRS}
    pulls = [bar_of(pull.name, unit="x floor", limit=limits[pull.name], value=pull.of_medians) for pull in images.pulls]
    name = f"ListImages, {images.present} images"
    return [*pulls, bar_of(name, unit="ms", limit=LIST_IMAGES_LIMIT_MS, value=images.list_ms)]


def compared(pairs: Iterable[Pair], timed_rounds: Mapping[str, Sequence[Timings]]) -> list[Compared]:
    """Compare all sides; `timed_rounds` is keyed by side."""
    return [
        compared_row(
            pair.name,
            {
                side: statistics.median(_sum(timings.took, names) for timings in rounds)
                for side, rounds in timed_rounds.items()
                if (names := pair.floor if side == FLOOR else pair.server)
            },
        )
        for pair in pairs
    ]


def compared_row(name: str, took_ms: Mapping[str, float]) -> Compared:
    """Compare the medians of all sides."""
    floor = took_ms.get(FLOOR)
    of_floor = {side: took / floor for side, took in took_ms.items()} if floor else {}
    return Compared(name=name, took_ms=dict(took_ms), of_floor=of_floor)


def bars(phases: Iterable[Phase], *, footprints: Iterable[Footprint]) -> list[Bar]:
    """Compare the times of every phase and the largest footprint with the promised limits."""
    limits = {pair.name: pair.limit for pair in PAIRS}
    made = [
        bar_of(f"{ratio.name}, {present(each.pods)}", unit="x floor", limit=limit, value=ratio.of_medians)
        for each in phases
        for ratio in each.ratios
        if (limit := limits[ratio.name]) is not None
    ]
    most = max(footprints, key=lambda taken: taken.rss_mib)
    return [*made, bar_of(f"server RSS, {most.when}", unit="MiB", limit=RSS_LIMIT_MIB, value=most.rss_mib)]


def at_once_bar(load: AtOnce) -> Bar:
    """Compare many pods at once with the promised limit."""
    return bar_of(many(load), unit="x floor", limit=AT_ONCE_LIMIT, value=load.server_seconds / load.floor_seconds)


def many(load: AtOnce) -> str:
    """Return a label for many pods at once."""
    return f"{load.pods} pods, {load.at_once} at a time"


def bar_of(name: str, *, unit: str, limit: float, value: float) -> Bar:
    """Compare a value with its promised limit."""
    return Bar(name=name, unit=unit, limit=limit, value=value, met=value <= limit)


def present(pods: int) -> str:
    """Return a label for the other pods of a phase."""
    return f"{pods} pods present" if pods else "alone"


def ranked(values: Iterable[float], share: float) -> float:
    """Return the measured value of rank `share`, 0 to 1 (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _calls(side: str, timed_rounds: Sequence[Timings]) -> list[Call]:
    values: dict[str, list[float]] = {}
    for timings in timed_rounds:
        for name, took in timings.took.items():
            values.setdefault(name, []).extend(took)
    return [
        Call(name=name, side=side, count=len(took), median_ms=statistics.median(took), p95_ms=ranked(took, 0.95))
        for name, took in values.items()
    ]


def _ratio(pair: Pair, *, floor: Sequence[Timings], server: Sequence[Timings]) -> Ratio:
    floors = [_sum(timings.took, pair.floor) for timings in floor]
    servers = [_sum(timings.took, pair.server) for timings in server]
    floor_ms, server_ms = statistics.median(floors), statistics.median(servers)
    return Ratio(
        name=pair.name,
        floor_ms=floor_ms,
        server_ms=server_ms,
        of_medians=server_ms / floor_ms,
        of_pairs=statistics.median(there / here for here, there in zip(floors, servers, strict=True)),
        of_quartiles=ranked(servers, 0.25) / ranked(floors, 0.25),
    )


def _sum(took: Mapping[str, Sequence[float]], names: Iterable[str]) -> float:
    """Return a round's sum; a call made several times counts with its median."""
    return sum(statistics.median(took[name]) for name in names)
