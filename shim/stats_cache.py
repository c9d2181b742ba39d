"""Earlier measurements of containers and pods: CPU history for rates, slow measurements, and prefetched answers.

The threads of `shim.stats` write it, its answers read it. Nothing here measures.
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
"""Seconds between two background passes over CPU time and stats: less than the longest window of a rate, and less than
the ten seconds after which the kubelet asks again."""
METRICS_INTERVAL = 18.0
"""Seconds between two background passes over all metrics, similar to cAdvisor's."""
PREFETCH_SECONDS = 60.0
"""How long lists are prefetched after a request, in seconds."""

_MIN_WINDOW = 1 * SECOND
_MAX_WINDOW = 10 * SECOND
_MAX_POINTS = 4
"""Points per container: at an interval of nine seconds, more than the longest window."""


@dataclass(frozen=True, slots=True)
class Point:
    """CPU time and its timestamp, both in nanoseconds; the timestamp by the wall clock, like in the CRI."""

    at: int
    usage: int


class CpuHistory:
    """CPU time of containers and pods over the last seconds, by id. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._points: dict[str, deque[Point]] = {}

    def note(self, key: str, point: Point) -> None:
        """Add a point, in order of time."""
        with self._lock:
            self._points.setdefault(key, deque(maxlen=_MAX_POINTS)).append(point)

    def rate(self, key: str, now: Point, *, born_at: int) -> int:
        """Return nanoseconds of CPU time per second up to `now`, over a window of one to ten seconds.

        For a new id, the window begins at `born_at` with no usage, so the first sample has a rate at once. During the
        first second, the rate is the usage so far over one second.
        """
        base = self._base(key, now)
        if base is None or _is_another_run(base, now, born_at=born_at):
            base = Point(born_at, 0)
        return _rate(base, now)

    def rate_since_seen(self, key: str, now: Point) -> int | None:
        """Like `rate`, but for usage that may precede the birth; None until a second after the first point."""
        then = self._base(key, now)
        return None if then is None else _rate(then, now)

    def last(self, key: str) -> Point | None:
        """Return the last point."""
        with self._lock:
            points = self._points.get(key)
            return points[-1] if points else None

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget all other ids."""
        with self._lock:
            self._points = {key: points for key, points in self._points.items() if key in keys}

    def _base(self, key: str, now: Point) -> Point | None:
        with self._lock:
            points = tuple(self._points.get(key, ()))
        base = None
        for point in points:  # oldest first
            age = now.at - point.at
            if age < _MIN_WINDOW:  # or negative, if the clock was set back
                continue
            base = point
            if age <= _MAX_WINDOW:
                break
        # The longest allowed window gives the steadiest rate; after a pause in sampling, the last point.
        return base


def _is_another_run(then: Point, now: Point, *, born_at: int) -> bool:
    """Return whether a container was restarted between two points: it then has a new group."""
    return then.at < born_at <= now.at and now.usage < then.usage


def _rate(then: Point, now: Point) -> int:
    # The clock was set, or the group was recreated under the same id.
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
    """When it was measured, ns since the epoch."""
    used_bytes: int
    """On disk, as `du` counts: whole blocks, hard links once."""
    inodes: int
    store: str
    """Directory of the image store, which the kubelet maps to a device."""
    file_system: FileSystem | None = None
    """File system of the layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUsage:
    """Disk usage of the image store."""

    at: int
    """When it was measured, ns since the epoch."""
    root: Path
    """Its directory."""
    used_bytes: int
    """On disk, as `du` counts, shared layers once, without layers of containers."""
    inodes: int
    is_measured: bool
    """False until the whole store has been walked: then the figures are its file system's."""


class PrefetchCache(Generic[M]):
    """Answers that are prefetched, by id, while lists are requested. Thread-safe.

    With hundreds of containers, a list that reads every file on request takes longer than all other lists together. A
    list that is requested every few seconds is read in the background instead, a few seconds before.
    """

    def __init__(
        self, *, freshness: float, timestamp: Callable[[M], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Return answers up to `freshness` seconds after their pass. `timestamp` returns when an answer was read."""
        self._freshness = freshness
        self._timestamp = timestamp
        self._clock = clock
        self._prefetched: dict[str, tuple[M, float]] = {}
        self._returned: dict[str, int] = {}
        self._requested = -PREFETCH_SECONDS

    @property
    def requested_recently(self) -> bool:
        """Return whether a list was requested within the last minute."""
        return self._clock() - self._requested < PREFETCH_SECONDS

    def touch(self) -> None:
        """Note that a list is requested."""
        self._requested = self._clock()

    def put(self, key: str, answer: M) -> None:
        """Keep the answer of a pass. The caller must not modify it afterwards."""
        self._prefetched[key] = (answer, self._clock())

    def get(self, key: str) -> M | None:
        """Return the answer of the last pass if it is fresh enough."""
        answer, at = self._prefetched.get(key, (None, 0.0))
        return answer if self._clock() - at <= self._freshness else None

    def answer(
        self,
        key: str,
        *,
        read: Callable[[], M | None],
        refresh: Callable[[M], M | None],
        holds: Callable[[M], bool] = lambda _: True,
    ) -> M | None:
        """Return an answer for a list: the last pass's once, then a copy of it with current values from `refresh`.

        A client that computes a rate from two answers needs two timestamps. `read` reads everything, for lack of a
        fresh answer that `holds`. Return None if the container or pod is gone.
        """
        known = self.get(key)
        if known is None or not holds(known):
            made = read()
        elif self._timestamp(known) > self._returned.get(key, 0):
            made = known
        else:
            made = refresh(known)
        if made is not None:
            self._returned[key] = self._timestamp(made)
        return made

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget all others."""
        _keep_only(self._prefetched, keys)
        _keep_only(self._returned, keys)


class StatsCache:
    """All earlier measurements. Thread-safe: plain dictionaries whose entries are replaced as a whole."""

    def __init__(self) -> None:
        self.cpu = CpuHistory()
        self.layers: dict[str, LayerUsage] = {}
        """By container id; without an entry until measured."""
        self.images: StoreUsage | None = None
        """None until the store has been found."""
        self.container_stats = PrefetchCache[pb.ContainerStats](
            freshness=2 * INTERVAL, timestamp=lambda stats: stats.cpu.timestamp
        )
        self.sandbox_stats = PrefetchCache[pb.PodSandboxStats](
            freshness=2 * INTERVAL, timestamp=lambda stats: stats.linux.cpu.timestamp
        )
        self.sandbox_metrics = PrefetchCache[pb.PodSandboxMetrics](
            freshness=2 * METRICS_INTERVAL, timestamp=_metrics_read_at
        )
        self.uppers: dict[str, Path] = {}
        """Directory of the writable layer by container id, if it could be found."""
        self.attributes: dict[str, tuple[pb.ContainerConfig, pb.ContainerAttributes]] = {}
        """By container id, with the configuration they were made from; must not be modified."""
        self._on_container_started: Callable[[], object] = lambda: None

    def on_container_started(self, callback: Callable[[], object]) -> None:
        """Set the callback for started containers."""
        self._on_container_started = callback

    def container_started(self) -> None:
        """Report that a container has started, so that its layer is measured."""
        self._on_container_started()

    def keep_only(self, ids: Collection[str]) -> None:
        """Forget all other containers and sandboxes."""
        for store in (self.cpu, self.container_stats, self.sandbox_stats, self.sandbox_metrics):
            store.keep_only(ids)
        _keep_only(self.layers, ids)
        _keep_only(self.uppers, ids)
        _keep_only(self.attributes, ids)


def _metrics_read_at(metrics: pb.PodSandboxMetrics) -> int:
    """Return the timestamp of the first container's metrics, or of the network's if there is no container."""
    first = next((each.metrics[0] for each in metrics.container_metrics if each.metrics), None)
    return first.timestamp if first else metrics.metrics[0].timestamp if metrics.metrics else 0


def _keep_only(known: dict[str, V], keys: Collection[str]) -> None:
    # A copy of the keys: concurrent answers may add to these dictionaries.
    for gone in set(known).difference(keys):
        known.pop(gone, None)
