import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.start import start_container
from shim.errors import FailedPrecondition, NotFound, ShimError
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running


def test_a_started_container_runs(rt: Runtime) -> None:
    record = rt.view.container(running(rt, ready_pod(rt)))
    assert record.life.state == pb.CONTAINER_RUNNING
    assert record.life.started_at >= record.life.created_at > 0


def test_only_a_created_container_can_be_started(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    with pytest.raises(FailedPrecondition, match="CONTAINER_RUNNING"):
        start_container(rt, container_id=container)
    engine.exit_container(container)
    rt.view.refresh_container(container)
    with pytest.raises(FailedPrecondition, match="CONTAINER_EXITED"):
        start_container(rt, container_id=container)
    with pytest.raises(NotFound):
        start_container(rt, container_id="e" * 64)


def test_the_pod_must_be_ready(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    container = created(rt, sandbox)
    engine.exit_container(sandbox)
    rt.view.refresh_container(sandbox)
    with pytest.raises(FailedPrecondition, match="not ready"):
        start_container(rt, container_id=container)


def test_a_runtime_that_cannot_start_it_is_quoted(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    engine.fail_next("start_container", ShimError('exec: "nope": executable file not found'))
    with pytest.raises(ShimError, match="executable file not found"):
        start_container(rt, container_id=container)
