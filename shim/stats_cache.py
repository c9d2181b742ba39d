"""Caches measurements of containers and pods: for figures that need two readings, and for slow readings.

The threads of `shim.stats` fill the cache, and its RPCs read it.
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
"""Seconds between background readings of all usage: less than the longest window of a rate, and less than the kubelet's
interval of ten seconds."""
METRICS_INTERVAL = 18.0
"""Seconds between background readings of all metrics, similar to cAdvisor's interval."""
PREFETCH_SECONDS = 60.0
"""How long lists are prefetched after a request."""

REUSE_SECONDS = 0.5
"""Maximum age of an answer that is returned twice; clients that compute a rate ask again after a second or later."""
WATCHED_SECONDS = 3.0
"""A list counts as watched if requests for it come within this time, as by `crictl stats --watch`."""

_MIN_WINDOW = 1 * SECOND
_MAX_WINDOW = 10 * SECOND
_MAX_POINTS = 4
"""Points for each container. With a point every nine seconds, they cover more than the longest window."""


@dataclass(frozen=True, slots=True)
class Point:
    """CPU time at a moment by the wall clock, as in the CRI; both in nanoseconds."""

    at: int
    usage: int


class CpuHistory:
    """Recent CPU times of containers and pods, by id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, deque[Point]] = {}

    def note(self, key: str, point: Point) -> None:
        """Add a point; points must be added in the order of time."""
        with self._lock:
            self._points.setdefault(key, deque(maxlen=_MAX_POINTS)).append(point)

    def rate(self, key: str, now: Point, *, born_at: int) -> int:
        """Return nanoseconds of CPU time per second up to `now`, over a window of one to ten seconds.

        Without an earlier point the window begins at `born_at`, with no CPU time used. Within the first second, the CPU
        time used so far is returned as the rate of a whole second.
        """
        base = self._base(key, now)
        if base is None or _is_another_run(base, now, born_at=born_at):
            base = Point(born_at, 0)
        return _rate(base, now)

    def rate_since_seen(self, key: str, now: Point) -> int | None:
        """Return the rate without assuming zero usage at birth; None until a point is at least a second old."""
        then = self._base(key, now)
        return None if then is None else _rate(then, now)

    def last(self, key: str) -> Point | None:
        """Return the latest point; None without points."""
        with self._lock:
            points = self._points.get(key)
            return points[-1] if points else None

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget the points of all other keys."""
        with self._lock:
            self._points = {key: points for key, points in self._points.items() if key in keys}

    def _base(self, key: str, now: Point) -> Point | None:
        with self._lock:
            points = tuple(self._points.get(key, ()))
        base = None
        for point in points:  # the oldest first
            age = now.at - point.at
            if age < _MIN_WINDOW:  # also negative, if the clock was set back
                continue
            base = point
            if age <= _MAX_WINDOW:
                break
        # The longest allowed window gives the steadiest rate; after a pause in sampling, the last point has to do.
        return base


def _is_another_run(then: Point, now: Point, *, born_at: int) -> bool:
    """Return whether a container was restarted between two points, which gives it a new cgroup."""
    return then.at < born_at <= now.at and now.usage < then.usage


def _rate(then: Point, now: Point) -> int:
    # The clock was set back, or the cgroup was created again under the same id.
    if now.at <= then.at or now.usage < then.usage:
        return 0
    # Avoid an inflated rate over a very short window.
    return (now.usage - then.usage) * SECOND // max(_MIN_WINDOW, now.at - then.at)


@dataclass(frozen=True, slots=True)
class FileSystem:
    """A file system; sizes in bytes."""

    size: int
    inodes: int
    inodes_free: int
    major: int = 0
    minor: int = 0
    """Device number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUsage:
    """Disk usage of a container's writable layer."""

    at: int
    """Time of the measurement, ns since the epoch."""
    used_bytes: int
    """On disk, counted like `du`: whole blocks, hard links once."""
    inodes: int
    store: str
    """Directory of the image store, which the kubelet can map to a device."""
    file_system: FileSystem | None = None
    """The file system of the layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """Disk usage of the image store."""

    at: int
    """Time of the measurement, ns since the epoch."""
    root: Path
    """Directory of the store."""
    used_bytes: int
    """On disk, counted like `du`: shared layers once, without the writable layers of containers."""
    inodes: int
    is_measured: bool
    """False before the first complete walk of the store: then the figures are those for its file system."""


class PrefetchCache(Generic[M]):
    """Answers by id that are prefetched while lists are requested. Thread-safe.

    With hundreds of containers, a list that reads every file on request takes longer than all other lists together. So
    a list that clients request every few seconds is read in the background in advance.
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
        """Return answers for up to `freshness` seconds.

        `timestamp` returns the time of an answer's readings, ns since the epoch, by the clock `wall`. `on_watched` is
        called at each request for a watched list.
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
        """Return whether a list was requested within PREFETCH_SECONDS."""
        return self._clock() - self._asked < PREFETCH_SECONDS

    @property
    def is_watched(self) -> bool:
        """Return whether clients request a list every few seconds."""
        return self._clock() - self._watched < WATCHED_SECONDS

    def touch(self) -> None:
        """Record a request for a list."""
        before, self._asked = self._asked, self._clock()
        if self._asked - before < WATCHED_SECONDS:
            self._watched = self._asked
            self._on_watched()

    def put(self, key: str, answer: M) -> None:
        """Store an answer that was just read. The caller must not change it afterwards."""
        self._made[key] = (answer, self._clock())

    def get(self, key: str) -> M | None:
        """Return the answer if it is fresh; otherwise None."""
        answer, at = self._made.get(key, (None, 0.0))
        return answer if self._clock() - at <= self._freshness else None

    def is_new(self, key: str, answer: M) -> bool:
        """Return whether to serve `answer`: newer than the last answer served, or the same within REUSE_SECONDS."""
        at, last = self._timestamp(answer), self._returned.get(key, 0)
        return at > last or (at == last and self._wall() - at <= REUSE_SECONDS * SECOND)

    def note_returned(self, key: str, answer: M) -> M:
        """Record that `answer` is served, and return it.

        It replaces the cached answer but keeps its expiry, since some of its figures are as old.
        """
        self._returned[key] = self._timestamp(answer)
        self._replace(key, answer)
        return answer

    def renew(self, key: str, renewed: Callable[[M], M | None]) -> None:
        """Replace an answer that must not be served again by the newer answer that `renewed` returns, if any."""
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
        """Forget the answers of all other keys."""
        _keep_only(self._made, keys)
        _keep_only(self._returned, keys)


class StatsCache:
    """All cached measurements. Thread-safe: entries of its dictionaries are only replaced as a whole."""

    def __init__(self) -> None:
        self.cpu = CpuHistory()
        self.layers: dict[str, LayerUsage] = {}
        """By container id, of the containers measured so far."""
        self.images: StoreUsage | None = None
        """None until the store has been found."""
        self.watched = threading.Event()
        """Set by each request for a watched list: the next request needs newer answers."""
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
        """Directory of the writable layer by container id, if it is visible."""
        self.attributes: dict[str, tuple[pb.ContainerConfig, pb.ContainerAttributes]] = {}
        """By container id, with the configuration they were built from; callers must not change them."""
        self._on_container_started: Callable[[], object] = lambda: None

    def on_container_started(self, callback: Callable[[], object]) -> None:
        """Set the callback of `container_started`."""
        self._on_container_started = callback

    def container_started(self) -> None:
        """Report that a container has been started, so that its layer is measured."""
        self._on_container_started()

    def keep_only(self, ids: Collection[str]) -> None:
        """Forget the measurements of all other containers and sandboxes."""
        for store in (self.cpu, self.container_stats, self.sandbox_stats, self.sandbox_metrics):
            store.keep_only(ids)
        _keep_only(self.layers, ids)
        _keep_only(self.uppers, ids)
        _keep_only(self.attributes, ids)


def _metrics_read_at(metrics: pb.PodSandboxMetrics) -> int:
    """Return when the CPU time of a pod's first container was read; without containers, its network."""
    first = next((each.metrics[0] for each in metrics.container_metrics if each.metrics), None)
    return first.timestamp if first else metrics.metrics[0].timestamp if metrics.metrics else 0


def _keep_only(known: dict[str, V], keys: Collection[str]) -> None:
    # A copy of the keys, since other threads may add entries meanwhile.
    for gone in set(known).difference(keys):
        known.pop(gone, None)
