"""Pause containers end one after the other where Docker's networks deadlock, and side by side elsewhere."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from shim import runtime
from shim.base import deadline
from shim.domain.errors import DeadlineExceeded, ShimError
from shim.runtime import Locks, Runtime
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.stop import stop_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running

DEADLOCKS, WORKS = (1, 41), (1, 42)


@contextmanager
def ending_elsewhere(rt: Runtime, engine: FakeEngine) -> Iterator[None]:
    """Have another pod's pause container be at its end inside the block."""
    other = ready_pod(rt, "other")
    stopping = threading.Thread(target=stop_pod_sandbox, args=(rt,), kwargs={"sandbox_id": other})
    with engine.held("kill_container", other) as gate:
        stopping.start()
        gate.wait_entered()
        yield
    stopping.join(10)
    assert not engine.containers[other].running


def test_two_do_not_end_at_the_same_time_on_an_old_engine(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = DEADLOCKS
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    with ending_elsewhere(rt, engine):
        with deadline.bound(0.1), pytest.raises(DeadlineExceeded, match="end of another pause container"):
            stop_pod_sandbox(rt, sandbox_id=sandbox)
        assert not engine.containers[container].running  # it leaves no network
        assert engine.containers[sandbox].running
    remove_pod_sandbox(rt, sandbox_id=sandbox)
    assert sandbox not in engine.containers


def test_two_end_at_the_same_time_on_others(rt: Runtime, engine: FakeEngine) -> None:
    engine.version = WORKS
    sandbox = ready_pod(rt)
    with ending_elsewhere(rt, engine), deadline.bound(10):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
        assert not engine.containers[sandbox].running


def test_one_that_hangs_is_not_waited_for(rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.version = DEADLOCKS
    monkeypatch.setattr(runtime, "PAUSE_EXIT_SECONDS", 0.05)
    rt = replace(rt, locks=Locks())
    sandbox = ready_pod(rt)
    with ending_elsewhere(rt, engine), deadline.bound(10):
        stop_pod_sandbox(rt, sandbox_id=sandbox)
        assert not engine.containers[sandbox].running


def test_that_of_a_failed_pod_does_not_end_beside_another(rt: Runtime, engine: FakeEngine) -> None:
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
        failing.join(0.2)
        assert failing.is_alive()
        assert engine.calls_of("remove_container") == []
    failing.join(10)
    assert "on fire" in str(failures[0])
    assert len(engine.calls_of("remove_container")) == 1
