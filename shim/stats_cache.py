"""What was measured of containers and pods before: memory for figures that need two readings, or a slow one.

Filled by the threads of `shim.stats`, read by its answers. Nothing here measures.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from shim.api.v1 import api_pb2 as pb
from shim.base.times import SECOND

M = TypeVar("M")
V = TypeVar("V")

INTERVAL = 9.0
"""Seconds between two background readings of what everything uses: less than the longest window of a rate, and than the
ten seconds after which the kubelet asks again."""
METRICS_INTERVAL = 18.0
"""Seconds between two background readings of everything in the metrics; cAdvisor's are nearly as far apart."""
PREFETCH_SECONDS = 60.0
"""Seconds for which lists are prefetched after one has been requested."""

REUSE_SECONDS = 0.5
"""How old an answer may be that is returned again; clients that compute a rate ask after a second."""
WATCHED_SECONDS = 3.0
"""Between two requests for the same list by which somebody watches it, such as by `crictl stats --watch`."""

_MIN_WINDOW = 1 * SECOND
_MAX_WINDOW = 10 * SECOND
_MAX_POINTS = 4
"""Points for each container: at one every nine seconds, more than the longest window."""


@dataclass(frozen=True, slots=True)
class Point:
    """CPU time at one moment, both in nanoseconds; the moment by the wall clock, as in the CRI."""

    at: int
    usage: int


class CpuHistory:
    """CPU time of containers and pods over the last seconds, by id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, deque[Point]] = {}

    def note(self, key: str, point: Point) -> None:
        """Add a point; later ones must not be earlier."""
        with self._lock:
            self._points.setdefault(key, deque(maxlen=_MAX_POINTS)).append(point)

    def rate(self, key: str, now: Point, *, born_at: int) -> int:
        """Return nanoseconds of CPU time per second up to `now`, over a window of one to ten seconds.

        For what has not been seen before, the window begins at `born_at`, when it had used nothing: it has a
        complete sample at once. Before a second has passed, the figure is what was used over that second.
        """
        base = self._base(key, now)
        if base is None or _is_another_run(base, now, born_at=born_at):
            base = Point(born_at, 0)
        return _rate(base, now)

    def rate_since_seen(self, key: str, now: Point) -> int | None:
        """Return the same for what may have been used before its birth; None until it is known for a second."""
        then = self._base(key, now)
        return None if then is None else _rate(then, now)

    def last(self, key: str) -> Point | None:
        """Return the last point."""
        with self._lock:
            points = self._points.get(key)
            return points[-1] if points else None

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget all others."""
        with self._lock:
            self._points = {key: points for key, points in self._points.items() if key in keys}

    def _base(self, key: str, now: Point) -> Point | None:
        with self._lock:
            points = tuple(self._points.get(key, ()))
        base = None
        for point in points:  # the oldest first
            age = now.at - point.at
            if age < _MIN_WINDOW:  # or negative, since the clock was set back
                continue
            base = point
            if age <= _MAX_WINDOW:
                break
        # The longest window that is allowed is the steadiest figure; after a pause in sampling, the last point.
        return base


def _is_another_run(then: Point, now: Point, *, born_at: int) -> bool:
    """Return whether a container was started again between two points: it then has a new group."""
    return then.at < born_at <= now.at and now.usage < then.usage


def _rate(then: Point, now: Point) -> int:
    # A clock that was set, or a group that was made again under the same id.
    if now.at <= then.at or now.usage < then.usage:
        return 0
    # Avoid an inflated rate over a very short window.
    return (now.usage - then.usage) * SECOND // max(_MIN_WINDOW, now.at - then.at)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A whole file system; sizes in bytes."""

    size: int
    inodes: int
    inodes_free: int
    major: int = 0
    minor: int = 0
    """Number of its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUsage:
    """What a container has written to its own layer."""

    at: int
    """When it was measured, ns since the epoch."""
    used_bytes: int
    """On disk, as `du` counts: whole blocks, hard links once."""
    inodes: int
    store: str
    """Directory of the image store, for a file system the kubelet can map to a device."""
    file_system: FileSystem | None = None
    """The one the layer lies on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """What the image store takes of the disk."""

    at: int
    """When it was measured, ns since the epoch."""
    root: Path
    """Its directory."""
    used_bytes: int
    """On disk, as `du` counts, layers that images share once; without the layers of containers."""
    inodes: int
    is_measured: bool
    """False before all of the store has been walked for the first time: then the figures are its file system's."""


class PrefetchCache(Generic[M]):
    """Answers that are prefetched, by id, for as long as lists are requested. Thread-safe.

    With hundreds of containers a list that reads every file on request takes longer than all other lists together.
    One that is requested every few seconds is read in the background instead, a few seconds before.
    """

    def __init__(
        self,
        *,
        freshness: float,
        clock: Callable[[], float] = time.monotonic,
        timestamp: Callable[[M], int] = lambda _: 0,
        wall: Callable[[], int] = time.time_ns,
        on_watched: Callable[[], object] = lambda: None,
    ) -> None:
        """Return answers up to `freshness` seconds after they were made.

        `timestamp` returns when an answer was read, ns since the epoch, by the clock `wall`. `on_watched` is called,
        without arguments, at each request for lists that come every few seconds.
        """
        self._freshness = freshness
        self._clock = clock
        self._timestamp = timestamp
        self._wall = wall
        self._on_watched = on_watched
        self._made: dict[str, tuple[M, float]] = {}
        self._returned: dict[str, int] = {}
        self._asked = self._watched = -PREFETCH_SECONDS

    @property
    def requested_recently(self) -> bool:
        """Return whether a list was requested within the last minute."""
        return self._clock() - self._asked < PREFETCH_SECONDS

    @property
    def is_watched(self) -> bool:
        """Return whether a list is requested every few seconds now."""
        return self._clock() - self._watched < WATCHED_SECONDS

    def touch(self) -> None:
        """Note that a list is requested."""
        before, self._asked = self._asked, self._clock()
        if self._asked - before < WATCHED_SECONDS:
            self._watched = self._asked
            self._on_watched()

    def put(self, key: str, answer: M) -> None:
        """Keep an answer that was made just now; it must not be changed from then on."""
        self._made[key] = (answer, self._clock())

    def get(self, key: str) -> M | None:
        """Return an answer that is fresh enough."""
        answer, at = self._made.get(key, (None, 0.0))
        return answer if self._clock() - at <= self._freshness else None

    def is_new(self, key: str, answer: M) -> bool:
        """Return whether an answer is later than the last one that was returned, or is that one and recent."""
        at, last = self._timestamp(answer), self._returned.get(key, 0)
        return at > last or (at == last and self._wall() - at <= REUSE_SECONDS * SECOND)

    def note_returned(self, key: str, answer: M) -> M:
        """Note that an answer is returned. It replaces a cached one and expires with it: some figures are as old."""
        self._returned[key] = self._timestamp(answer)
        self._replace(key, answer)
        return answer

    def renew(self, key: str, renewed: Callable[[M], M | None]) -> None:
        """Replace an answer that may not be returned again by what `renewed` makes of it, if anything: a later one."""
        answer = self.get(key)
        if answer is None or self.is_new(key, answer):
            return
        later = renewed(answer)
        if later is not None:
            self._replace(key, later)

    def _replace(self, key: str, answer: M) -> None:
        kept = self._made.get(key)
        if kept is not None:
            self._made[key] = (answer, kept[1])

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget all others."""
        _keep_only(self._made, keys)
        _keep_only(self._returned, keys)


class StatsCache:
    """Everything that is remembered. Thread-safe: plain dictionaries whose entries are replaced as a whole."""

    def __init__(self) -> None:
        self.cpu = CpuHistory()
        self.layers: dict[str, LayerUsage] = {}
        """By container id; nothing for one that has not been measured yet."""
        self.images: StoreUsage | None = None
        """None before the store has been found."""
        self.watched = threading.Event()
        """Set by each request for lists that come every few seconds: the next one will want later answers."""
        self.container_stats = PrefetchCache[pb.ContainerStats](
            freshness=2 * INTERVAL, timestamp=lambda stats: stats.cpu.timestamp, on_watched=self.watched.set
        )
        self.sandbox_stats = PrefetchCache[pb.PodSandboxStats](
            freshness=2 * INTERVAL, timestamp=lambda stats: stats.linux.cpu.timestamp, on_watched=self.watched.set
        )
        self.sandbox_metrics = PrefetchCache[pb.PodSandboxMetrics](
            freshness=2 * METRICS_INTERVAL, timestamp=_metrics_read_at, on_watched=self.watched.set
        )
        self.uppers: dict[str, Path] = {}
        """Directory of the writable layer by container id, of those that have one that can be seen."""
        self.attributes: dict[str, tuple[pb.ContainerConfig, pb.ContainerAttributes]] = {}
        """By container id, with the configuration they were made from; they must not be changed."""
        self._on_container_started: Callable[[], object] = lambda: None

    def on_container_started(self, callback: Callable[[], object]) -> None:
        """Set what is called, without arguments, when a container has been started."""
        self._on_container_started = callback

    def container_started(self) -> None:
        """Report that a container has been started: its layer is to be measured."""
        self._on_container_started()

    def keep_only(self, ids: Collection[str]) -> None:
        """Forget what is known of all other containers and sandboxes."""
        for store in (self.cpu, self.container_stats, self.sandbox_stats, self.sandbox_metrics):
            store.keep_only(ids)
        _keep_only(self.layers, ids)
        _keep_only(self.uppers, ids)
        _keep_only(self.attributes, ids)


def _metrics_read_at(metrics: pb.PodSandboxMetrics) -> int:
    """Return when the CPU time of a pod's first container was read; its network where it has none."""
    first = next((each.metrics[0] for each in metrics.container_metrics if each.metrics), None)
    return first.timestamp if first else metrics.metrics[0].timestamp if metrics.metrics else 0


def _keep_only(known: dict[str, V], keys: Collection[str]) -> None:
    # A copy of the keys: answers under way may add to these dictionaries at the same time.
    for gone in set(known).difference(keys):
        known.pop(gone, None)
