import gc
import queue
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from shim.base import deadline
from shim.container.stop import stop_container
from shim.domain.errors import Unavailable
from shim.runtime import Runtime
from shim.sandbox.stop import stop_pod_sandbox
from shim.stats import sampler as module
from shim.stats.sampler import Sampler, sample
from shim.stats_cache import Point
from shim.view.node_view import NodeView
from tests.cgroup.removal import remove_group
from tests.cgroup.trees import DATA, group_v1, group_v2
from tests.facts import open_descriptors
from tests.fakes.engine import FakeEngine
from tests.stats.placed import pod_with_container, without_docker

SECONDS = 20


def last_usage(rt: Runtime, key: str) -> int | None:
    point = rt.stats_cache.cpu.last(key)
    return None if point is None else point.usage


def test_cpu_time_of_containers_and_pods_is_noted(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())

    sample(without_docker(rt), with_metrics=True)

    assert last_usage(rt, pod.container) == 9_214_533_000
    assert last_usage(rt, pod.sandbox) == 9_251_200_000
    # No client has asked for a list.
    assert rt.stats_cache.container_stats.get(pod.container) is None
    assert rt.stats_cache.sandbox_metrics.get(pod.sandbox) is None


def test_requested_lists_are_prefetched(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    for cache in (rt.stats_cache.container_stats, rt.stats_cache.sandbox_stats, rt.stats_cache.sandbox_metrics):
        cache.touch()

    sample(without_docker(rt), with_metrics=True)

    stats = rt.stats_cache.container_stats.get(pod.container)
    pod_stats = rt.stats_cache.sandbox_stats.get(pod.sandbox)
    assert stats is not None
    assert pod_stats is not None
    assert stats.cpu.usage_core_nano_seconds.value == last_usage(rt, pod.container) == 9_214_533_000
    assert list(pod_stats.linux.containers) == [stats]
    assert last_usage(rt, pod.sandbox) == 9_251_200_000
    assert rt.stats_cache.sandbox_metrics.get(pod.sandbox) is not None


def test_metrics_are_prefetched_less_often(rt: Runtime) -> None:
    pod = pod_with_container(rt, group_v2())
    rt.stats_cache.sandbox_metrics.touch()

    sample(rt, with_metrics=False)

    assert rt.stats_cache.sandbox_metrics.get(pod.sandbox) is None


def test_files_of_an_exited_container_are_closed(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v2", tmp_path / "v2")
    pod = pod_with_container(rt, group_v2(root=tmp_path / "v2"))
    gc.collect()  # groups of other tests
    before = open_descriptors()
    sample(rt, with_metrics=False)
    assert open_descriptors() > before
    stop_container(rt, container_id=pod.container, timeout=0)
    stop_pod_sandbox(rt, sandbox_id=pod.sandbox)

    sample(rt, with_metrics=False)

    assert open_descriptors() == before


def test_removed_containers_are_forgotten(rt: Runtime) -> None:
    rt.stats_cache.cpu.note("gone", Point(1, 1))

    sample(rt, with_metrics=False)

    assert last_usage(rt, "gone") is None


def test_vanishing_group_does_not_affect_others(rt: Runtime, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v1", tmp_path / "v1")
    goes = pod_with_container(rt, group_v1(root=tmp_path / "v1"), name="goes")
    stays = pod_with_container(rt, group_v1(), name="stays")
    remove_group(tmp_path / "v1")

    sample(rt, with_metrics=False)

    assert (last_usage(rt, goes.container), last_usage(rt, stays.container)) == (None, 1_110_046_355)


@pytest.mark.parametrize("failure", [Unavailable("no docker"), RuntimeError("unforeseen")], ids=["expected", "not"])
def test_passes_continue_after_a_failure(rt: Runtime, monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    passed = threading.Semaphore(0)

    def failing(_rt: Runtime, *, with_metrics: bool) -> None:
        passed.release()
        raise failure

    monkeypatch.setattr(module, "sample", failing)
    sampler = Sampler(rt, interval=0.01)
    sampler.start()
    assert all(passed.acquire(timeout=SECONDS) for _ in range(3))
    sampler.stop()


def test_some_passes_include_metrics(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: queue.SimpleQueue[bool] = queue.SimpleQueue()
    monkeypatch.setattr(module, "sample", lambda _rt, *, with_metrics: passes.put(with_metrics))
    monkeypatch.setattr(module, "METRICS_INTERVAL", 1000.0)
    sampler = Sampler(rt, interval=0.01)
    sampler.start()
    try:
        assert [passes.get(timeout=SECONDS) for _ in range(3)] == [True, False, False]
    finally:
        sampler.stop()


def test_second_pass_follows_soon(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: queue.SimpleQueue[float] = queue.SimpleQueue()
    monkeypatch.setattr(module, "sample", lambda _rt, *, with_metrics: passes.put(time.monotonic()))
    sampler = Sampler(rt, interval=1000)
    sampler.start()
    try:
        first, second = (passes.get(timeout=SECONDS) for _ in range(2))
    finally:
        sampler.stop()

    # A shorter window gives no rate.
    assert second - first > 1


def test_stop_does_not_wait_for_docker(rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def begin(rt: Runtime, *, with_metrics: bool) -> None:
        begun.set()
        sample(rt, with_metrics=with_metrics)

    monkeypatch.setattr(module, "sample", begin)
    never_built = NodeView(engine, sync_timeout=deadline.LONGEST)
    sampler = Sampler(replace(rt, view=never_built))
    sampler.start()
    assert begun.wait(SECONDS)

    sampler.stop()
