"""One background pass over everything that runs, so that answers have a rate, and long lists are prefetched."""

import itertools
import threading
import time

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from shim.stats.containers import stats_of
from shim.stats.metrics import pod_metrics
from shim.stats.readings import (
    Processor,
    Reading,
    container_processor,
    container_reading,
    pod_processor,
    running_containers,
    running_sandboxes,
)
from shim.stats.sandboxes import running_pod_stats
from shim.stats_cache import INTERVAL, METRICS_INTERVAL, Point
from shim.view.records import ContainerRecord, SandboxRecord

_COOLDOWN_FACTOR = 50
"""A pass that took much CPU time is followed by a pause of this many times as long: at most 2 % of a core."""
_SECOND_PASS_SECONDS = 1.1
"""Seconds from the first pass to the second one: what ran before the server has a rate of its own from then on."""

log = structlog.get_logger(__name__)


def sample(rt: Runtime, *, metrics: bool) -> None:
    """Sample all that runs, and forget what is gone. Raise Unavailable as the view.

    CPU time is always noted; the rest is read when a list was requested lately, and `metrics` with it.
    """
    there: set[str] = {record.id for record in rt.view.containers()}
    there.update(record.id for record in rt.view.sandboxes())
    rt.stats_cache.keep_only(there)
    rt.cgroups.keep_only(there)
    read = {container.id: _sample_container(rt, container) for container in running_containers(rt)}
    for sandbox in running_sandboxes(rt):
        _sample_sandbox(rt, sandbox)
        if metrics and rt.stats_cache.sandbox_metrics.requested_recently:
            rt.stats_cache.sandbox_metrics.put(sandbox.id, pod_metrics(rt, sandbox, read=read))


def _sample_container(rt: Runtime, record: ContainerRecord) -> Reading | None:
    """Note the CPU time of a container; return the reading if all of it was read."""
    cache = rt.stats_cache.container_stats
    if not (cache.requested_recently or rt.stats_cache.sandbox_stats.requested_recently):
        _note(rt, record.id, container_processor(rt, record))
        return None
    reading = container_reading(rt, record)
    if reading is not None:
        cache.put(record.id, stats_of(rt, record, reading=reading))
        _note(rt, record.id, reading.processor)
    return reading


def _sample_sandbox(rt: Runtime, record: SandboxRecord) -> None:
    cache = rt.stats_cache.sandbox_stats
    if not cache.requested_recently:
        _note(rt, record.id, pod_processor(rt, record))
    elif (stats := running_pod_stats(rt, record, ahead=True)) is not None:
        cache.put(record.id, stats)
        _note_usage(rt, record.id, stats.linux.cpu)


def _note(rt: Runtime, key: str, reading: Processor | None) -> None:
    if reading is not None:
        rt.stats_cache.cpu.note(key, Point(reading.at, reading.cpu.usage))


def _note_usage(rt: Runtime, key: str, usage: pb.CpuUsage) -> None:
    rt.stats_cache.cpu.note(key, Point(usage.timestamp, usage.usage_core_nano_seconds.value))


class Sampler:
    """Samples in a thread of its own, from `start` to `stop`."""

    def __init__(self, rt: Runtime, *, interval: float = INTERVAL) -> None:
        self._rt = rt
        self._interval = interval
        self._stopping = threading.Event()
        self._scope = deadline.Scope()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin, with a pass at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, as soon as the pass under way is done."""
        self._stopping.set()
        self._scope.cancel()
        self._thread.join()

    def _run(self) -> None:
        pause = metrics_due = 0.0
        intervals = itertools.chain([min(self._interval, _SECOND_PASS_SECONDS)], itertools.repeat(self._interval))
        while not self._stopping.wait(pause):
            now = time.monotonic()
            metrics = now >= metrics_due
            if metrics:
                # Half an interval early: a pass that comes a little too soon must not put it off to the next one.
                metrics_due = now + METRICS_INTERVAL - self._interval / 2
            pause = max(next(intervals), _COOLDOWN_FACTOR * self._pass(metrics=metrics))

    def _pass(self, *, metrics: bool) -> float:
        """Sample everything once; return the seconds of CPU time it took."""
        began = time.thread_time()
        try:
            with deadline.entered(self._scope):
                sample(self._rt, metrics=metrics)
        except ShimError as error:
            log.debug("cannot sample now", error=error)
        except Exception:  # without samples every rate would silently stand still
            used = time.thread_time() - began
            log.exception("failed to sample, will retry")
            return used
        return time.thread_time() - began
