import queue
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shim.base import deadline
from shim.domain.errors import Unavailable
from shim.runtime import Runtime
from shim.stats import sampler as module
from shim.stats.sampler import Sampler, sample
from shim.stats_cache import Point
from shim.view.node import NodeView
from tests.cgroup.trees import DATA, group_v1, group_v2
from tests.fakes.engine import FakeEngine
from tests.stats.placed import pod_with_container, without_docker

SECONDS = 20


def last_usage(rt: Runtime, key: str) -> int | None:
    point = rt.stats_cache.cpu.last(key)
    return None if point is None else point.usage


def test_cpu_time_of_containers_and_pods_is_noted(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())

    sample(without_docker(rt), metrics=True)

    assert last_usage(rt, pod.container) == 9_214_533_000
    assert last_usage(rt, pod.sandbox) == 9_251_200_000
    # No client has asked for a list.
    assert rt.stats_cache.container_stats.get(pod.container) is None
    assert rt.stats_cache.sandbox_metrics.get(pod.sandbox) is None


def test_lists_that_are_asked_for_are_read_ahead(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    for cache in (rt.stats_cache.container_stats, rt.stats_cache.sandbox_stats, rt.stats_cache.sandbox_metrics):
        cache.touch()

    sample(without_docker(rt), metrics=True)

    stats = rt.stats_cache.container_stats.get(pod.container)
    pod_stats = rt.stats_cache.sandbox_stats.get(pod.sandbox)
    assert stats is not None
    assert pod_stats is not None
    assert stats.cpu.usage_core_nano_seconds.value == last_usage(rt, pod.container) == 9_214_533_000
    assert list(pod_stats.linux.containers) == [stats]
    assert last_usage(rt, pod.sandbox) == 9_251_200_000
    assert rt.stats_cache.sandbox_metrics.get(pod.sandbox) is not None


def test_metrics_are_read_less_often(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    rt.stats_cache.sandbox_metrics.touch()

    sample(rt, metrics=False)

    assert rt.stats_cache.sandbox_metrics.get(pod.sandbox) is None


def test_what_is_gone_is_forgotten(rt: Runtime) -> None:
    rt.stats_cache.cpu.note("gone", Point(1, 1))

    sample(rt, metrics=False)

    assert last_usage(rt, "gone") is None


def test_a_group_that_vanishes_takes_no_other_with_it(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v1", tmp_path / "v1")
    goes = pod_with_container(rt, group_v1(root=tmp_path / "v1"), name="goes")
    stays = pod_with_container(rt, group_v1(), name="stays")
    shutil.rmtree(tmp_path / "v1")

    sample(rt, metrics=False)

    assert (last_usage(rt, goes.container), last_usage(rt, stays.container)) == (None, 1_110_046_355)


@pytest.mark.parametrize("failure", [Unavailable("no docker"), RuntimeError("unforeseen")], ids=["expected", "not"])
def test_a_pass_that_fails_is_not_the_last(rt: Runtime, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    passed = threading.Semaphore(0)

    def failing(_rt: Runtime, *, metrics: bool) -> None:
        passed.release()
        raise failure

    monkeypatch.setattr(module, "sample", failing)
    sampler = Sampler(rt, interval=0.01)
    sampler.start()
    assert all(passed.acquire(timeout=SECONDS) for _ in range(3))
    sampler.stop()


def test_of_many_passes_some_are_for_metrics(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    monkeypatch.setattr(module, "sample", lambda _rt, *, metrics: passes.put(metrics))
    monkeypatch.setattr(module, "METRICS_INTERVAL", 1000.0)
    sampler = Sampler(rt, interval=0.01)
    sampler.start()
    try:
        assert [passes.get(timeout=SECONDS) for _ in range(3)] == [True, False, False]
    finally:
        sampler.stop()


def test_what_ran_before_is_sampled_again_soon(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: queue.SimpleQueue[float] = queue.SimpleQueue()
    monkeypatch.setattr(module, "sample", lambda _rt, *, metrics: passes.put(time.monotonic()))
    sampler = Sampler(rt, interval=1000)
    sampler.start()
    try:
        first, second = (passes.get(timeout=SECONDS) for _ in range(2))
    finally:
        sampler.stop()

    # A shorter window gives no rate.
    assert second - first > 1


def test_a_stop_does_not_wait_for_docker(rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def begin(rt: Runtime, *, metrics: bool) -> None:
        begun.set()
        sample(rt, metrics=metrics)

    monkeypatch.setattr(module, "sample", begin)
    never_built = NodeView(engine, sync_timeout=deadline.LONGEST)
    sampler = Sampler(replace(rt, view=never_built))
    sampler.start()
    assert begun.wait(SECONDS)

    sampler.stop()
