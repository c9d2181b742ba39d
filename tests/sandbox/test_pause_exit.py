"""Pause containers end in turn on Engines whose networks deadlock, and in parallel on others."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from shim import rpc_locks
from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, ShimError
from shim.rpc_locks import Locks
from shim.runtime import Runtime
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.stop import stop_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running
from tests.waits import wait_until

DEADLOCKS, WORKS = (1, 41), (1, 42)


@contextmanager
def ending_elsewhere(rt: Runtime, engine: FakeEngine) -> Iterator[None]:
    """Hold the end of another pod's pause container inside the block."""
    other = ready_pod(rt, "other")
    stopping = threading.Thread(target=stop_pod_sandbox, args=(rt,), kwargs={"sandbox_id": other})
    with engine.held("kill_container", other) as gate:
        stopping.start()
        gate.wait_entered()
        yield
    stopping.join(10)
    assert not engine.containers[other].running


def waiting(rt: Runtime) -> object:
    """Return how many calls wait for the end of another pause container."""
    return next((row["waiting"] for row in rt.locks.rows() if row["lock"] == "pause exit"), None)


def test_pause_containers_end_in_turn_on_an_old_engine(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = DEADLOCKS
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    scope = Scope()

    def stop() -> None:
        with deadline.entered(scope), pytest.raises(Cancelled, match="end of another pause container"):
            stop_pod_sandbox(rt, sandbox_id=sandbox)

    with ending_elsewhere(rt, engine), ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(stop)
        wait_until(lambda: waiting(rt) == 1)
        assert not engine.containers[container].running  # it leaves no network
        scope.cancel()
        stopping.result(10)
        assert engine.containers[sandbox].running
    remove_pod_sandbox(rt, sandbox_id=sandbox)
    assert sandbox not in engine.containers


def test_pause_containers_end_in_parallel_on_newer_engines(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = WORKS
    sandbox = ready_pod(rt)
    with ending_elsewhere(rt, engine), deadline.bound(10):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
        assert not engine.containers[sandbox].running


def test_a_pause_container_that_hangs_does_not_block_others(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.version = DEADLOCKS
    monkeypatch.setattr(rpc_locks, "PAUSE_EXIT_SECONDS", 0.05)
    rt = replace(rt, locks=Locks())
    sandbox = ready_pod(rt)
    with ending_elsewhere(rt, engine), deadline.bound(10):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
        assert not engine.containers[sandbox].running


def test_a_pause_container_that_docker_may_be_starting_is_killed(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = DEADLOCKS
    sandbox = ready_pod(rt)
    engine.containers[sandbox].status = "created"
    engine.containers[sandbox].started = engine.containers[sandbox].pid = 0
    rt.view.refresh_container(sandbox)
    engine.calls.clear()
    stop_pod_sandbox(rt, sandbox_id=sandbox)
    assert engine.calls_of("kill_container") == [sandbox]


def test_the_pause_container_of_a_failed_pod_ends_in_turn(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = DEADLOCKS
    failures: list[ShimError] = []

    def fail() -> None:
        with pytest.raises(ShimError) as failure:
            ready_pod(rt)
        failures.append(failure.value)

    failing = threading.Thread(target=fail)
    with ending_elsewhere(rt, engine):
        engine.fail_next("start_container", ShimError("the disk is on fire"))
        failing.start()
        wait_until(lambda: waiting(rt) == 1)
        assert engine.calls_of("remove_container") == []
    failing.join(10)
    assert "on fire" in str(failures[0])
    assert len(engine.calls_of("remove_container")) == 1


def test_the_pause_container_of_a_failed_pod_is_removed_even_if_the_kill_fails(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = DEADLOCKS
    engine.fail_next("start_container", ShimError("the disk is on fire"))
    engine.fail_next("kill_container", ShimError("out of order"))
    with pytest.raises(ShimError, match="on fire"):
        ready_pod(rt)
    assert engine.containers == {}
