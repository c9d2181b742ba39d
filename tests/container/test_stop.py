import threading

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.stop import stop_container
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.pods import created, ready_pod, running
from tests.waits import wait_until


@pytest.mark.parametrize("container_id", ["f" * 64, "0f0e8e1c-3c7c-4a6c-8a38-6f5b3f9b7f0b"])
def test_stopping_an_unknown_container_succeeds(container_id: str, rt: Runtime) -> None:
    stop_container(rt, container_id=container_id, timeout=0)


def test_the_container_is_exited_when_stop_returns(rt: Runtime) -> None:
    container = running(rt, ready_pod(rt))
    stop_container(rt, container_id=container, timeout=5)
    state = rt.view.container(container).state
    assert (state.phase, state.exit_code, state.reason) == (pb.CONTAINER_EXITED, 143, "Error")
    stop_container(rt, container_id=container, timeout=5)


def test_without_a_grace_period_it_is_killed(rt: Runtime) -> None:
    container = running(rt, ready_pod(rt))
    stop_container(rt, container_id=container, timeout=0)
    assert rt.view.container(container).state.exit_code == 137


def test_stopping_a_created_container_changes_nothing(rt: Runtime) -> None:
    container = created(rt, ready_pod(rt))
    stop_container(rt, container_id=container, timeout=0)
    assert rt.view.container(container).state.phase == pb.CONTAINER_CREATED


@pytest.mark.parametrize("runs", [True, False])
def test_a_stop_takes_away_the_restart_policy_of_a_user(rt: Runtime, engine: FakeEngine, runs: bool) -> None:
    container = running(rt, ready_pod(rt))
    engine.update_container(container, body={"RestartPolicy": {"Name": "always"}})
    if not runs:
        engine.exit_container(container)
    wait_until(lambda: rt.view.container(container).state.restarts)
    wait_until(lambda: rt.view.container(container).state.running == runs)
    stop_container(rt, container_id=container, timeout=5)
    assert engine.inspect_container(container).host_config.restart_policy.name == "no"
    updates = len(engine.calls_of("update_container"))
    wait_until(lambda: not rt.view.container(container).state.restarts)
    stop_container(rt, container_id=container, timeout=5)
    assert len(engine.calls_of("update_container")) == updates


def test_a_second_stop_does_not_wait_for_the_first(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    with engine.held("stop_container", container) as gate:
        patient = threading.Thread(target=stop_container, args=(rt,), kwargs={"container_id": container, "timeout": 30})
        patient.start()
        gate.wait_entered()
        stop_container(rt, container_id=container, timeout=0)
        assert not rt.view.container(container).state.running
    patient.join(10)
    assert not patient.is_alive()


def test_an_external_removal_during_the_stop_is_fine(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.remove_container(container)
    stop_container(rt, container_id=container, timeout=5)


def test_a_failed_stop_is_an_error(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.fail_next("stop_container", ShimError("tried to kill, but it lives"))
    with pytest.raises(ShimError, match="it lives"):
        stop_container(rt, container_id=container, timeout=5)


def test_a_container_in_an_unknown_state_is_stopped(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    engine.containers[container].status = "hibernating"
    rt.view.refresh_container(container)
    assert rt.view.container(container).state.phase == pb.CONTAINER_UNKNOWN
    stop_container(rt, container_id=container, timeout=5)
    assert ("stop_container", container) in engine.calls


def test_a_grace_period_of_centuries_does_not_overflow(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    stop_container(rt, container_id=container, timeout=2**62)
    assert rt.view.container(container).state.exit_code == 143


@pytest.mark.parametrize("timeout", [0, 5])
def test_stop_returns_when_the_last_output_is_written(rt: Runtime, logs: FakeLogs, timeout: int) -> None:
    container = running(rt, ready_pod(rt))
    logs.holding = True
    stopping = threading.Thread(
        target=stop_container, args=(rt,), kwargs={"container_id": container, "timeout": timeout}
    )
    stopping.start()
    wait_until(lambda: container in logs.held)
    assert rt.view.container(container).state.running
    assert stopping.is_alive()
    logs.release(container)
    stopping.join()
    assert not rt.view.container(container).state.running
