"""Samples all running pods in the background, for CPU rates and to prefetch long lists."""

import functools
import itertools
import threading
import time
from collections.abc import Callable

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from shim.stats import containers, metrics, sandboxes
from shim.stats.readings import (
    Processor,
    Reading,
    container_processor,
    container_reading,
    pod_processor,
    running_containers,
    running_sandboxes,
)
from shim.stats_cache import INTERVAL, METRICS_INTERVAL, Point
from shim.view.records import ContainerRecord, SandboxRecord

_COOLDOWN_FACTOR = 50
"""After a pass, pause for this many times the CPU time of the pass: passes take at most 2 % of a core."""
_SECOND_PASS_SECONDS = 1.1
"""Seconds from the first pass to the second, which gives containers older than the server a rate."""

log = structlog.get_logger(__name__)


def sample(rt: Runtime, *, with_metrics: bool) -> None:
    """Sample all running pods and containers, and forget removed objects. Raise Unavailable like the view.

    Always record CPU time. Read all other stats if a list was requested recently, and with `with_metrics` also metrics.
    """
    known: list[ContainerRecord | SandboxRecord] = [*rt.view.containers(), *rt.view.sandboxes()]
    rt.stats_cache.keep_only({record.id for record in known})
    rt.cgroups.keep_only({record.id: record.state.pid for record in known})
    read = {container.id: _sample_container(rt, container) for container in running_containers(rt)}
    for sandbox in running_sandboxes(rt):
        _sample_sandbox(rt, sandbox)
        if with_metrics and rt.stats_cache.sandbox_metrics.requested_recently:
            rt.stats_cache.sandbox_metrics.put(sandbox.id, metrics.pod_metrics(rt, sandbox, read=read))


def _sample_container(rt: Runtime, record: ContainerRecord) -> Reading | None:
    """Record the CPU time of a container; return its reading if all figures were read."""
    cache = rt.stats_cache.container_stats
    if not (cache.requested_recently or rt.stats_cache.sandbox_stats.requested_recently):
        _note(rt, record.id, container_processor(rt, record))
        return None
    reading = container_reading(rt, record)
    if reading is not None:
        cache.put(record.id, containers.stats_of(rt, record, reading=reading))
        _note(rt, record.id, reading.processor)
    return reading


def _sample_sandbox(rt: Runtime, record: SandboxRecord) -> None:
    cache = rt.stats_cache.sandbox_stats
    if not cache.requested_recently:
        _note(rt, record.id, pod_processor(rt, record))
    elif (stats := sandboxes.running_pod_stats(rt, record, prefetched=True)) is not None:
        cache.put(record.id, stats)
        _note_usage(rt, record.id, stats.linux.cpu)


def _note(rt: Runtime, key: str, reading: Processor | None) -> None:
    if reading is not None:
        rt.stats_cache.cpu.note(key, Point(reading.at, reading.cpu.usage))


def _note_usage(rt: Runtime, key: str, usage: pb.CpuUsage) -> None:
    rt.stats_cache.cpu.note(key, Point(usage.timestamp, usage.usage_core_nano_seconds.value))


class Sampler:
    """Runs the passes in a thread, between `start` and `stop`."""

    def __init__(self, rt: Runtime, *, interval: float = INTERVAL) -> None:
        self._rt = rt
        self._interval = interval
        self._stopping = threading.Event()
        self._scope = deadline.Scope()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Start the thread, with a first pass at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread after the current pass."""
        self._stopping.set()
        self._scope.cancel()
        self._thread.join()

    def _run(self) -> None:
        due = metrics_due = time.monotonic()
        intervals = itertools.chain([min(self._interval, _SECOND_PASS_SECONDS)], itertools.repeat(self._interval))
        while not self._stopping.is_set():
            now = time.monotonic()
            if now < due:
                self._stopping.wait(due - now)
                continue
            with_metrics = now >= metrics_due
            if with_metrics:
                # Half an interval early, so that a pass that is slightly early still reads metrics.
                metrics_due = now + METRICS_INTERVAL - self._interval / 2
            took = self._run_in_scope(functools.partial(sample, self._rt, with_metrics=with_metrics))
            due = time.monotonic() + max(next(intervals), _COOLDOWN_FACTOR * took)

    def _run_in_scope(self, work: Callable[[], None]) -> float:
        """Run `work`; log errors. Return the seconds of CPU time used."""
        began = time.thread_time()
        try:
            with deadline.entered(self._scope):
                work()
        except ShimError as error:
            log.debug("cannot sample now", error=error)
        except Exception:  # without samples all rates would silently go stale
            used = time.thread_time() - began
            log.exception("failed to sample, will retry")
            return used
        return time.thread_time() - began
