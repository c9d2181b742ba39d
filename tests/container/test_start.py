from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from shim import deadline
from shim.api.v1 import api_pb2 as pb
from shim.container.start import start_container
from shim.errors import FailedPrecondition, NotFound, ShimError
from shim.runtime import Runtime
from shim.sandbox.stop import stop_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
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


def test_its_log_is_followed_before_it_starts(rt: Runtime, engine: FakeEngine, logs: FakeLogs) -> None:
    """Docker tells where its own file is only afterwards, and then says the same."""
    container = created(rt, ready_pod(rt))
    engine.fail_next("start_container", ShimError("no"))
    with pytest.raises(ShimError, match="no"):
        start_container(rt, container_id=container)
    before = logs.followed[container]
    assert (before.docker, before.cri) == (
        f"/var/lib/docker/containers/{container}/{container}-json.log",
        "/var/log/pods/web/app.log",
    )
    start_container(rt, container_id=container)
    assert logs.followed[container] == before


def test_without_a_log_path_nothing_is_followed(rt: Runtime, logs: FakeLogs) -> None:
    running(rt, ready_pod(rt), log_path="")
    running(rt, ready_pod(rt, "silent", log_directory=""))
    assert logs.followed == {}


def test_a_log_that_cannot_be_written_keeps_no_container_from_starting(rt: Runtime, logs: FakeLogs) -> None:
    logs.problem = "no space left on device"
    assert rt.view.container(running(rt, ready_pod(rt))).life.running


# --- a client that leaves while Docker starts it ----------------------------------------------------------


@contextmanager
def left_starting(rt: Runtime, engine: FakeEngine, container: str) -> Iterator[Future[None]]:
    """Let Docker be about to start a container, and the client be gone, inside the block."""
    scope = deadline.Scope()

    def start() -> None:
        with deadline.entered(scope):
            start_container(rt, container_id=container)

    with ThreadPoolExecutor(1) as pool, engine.held("start_container", container) as gate:
        call = pool.submit(start)
        gate.wait_entered()
        scope.cancel()
        yield call


def test_a_start_is_finished_for_a_client_that_has_left(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    with left_starting(rt, engine, container) as call:
        pass
    call.result()
    assert rt.view.container(container).life.running


def test_what_starts_in_a_pod_that_stops_is_ended_for_a_client_that_has_left(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    container = created(rt, sandbox)
    with ThreadPoolExecutor(1) as pool:
        # Stop has found nothing to kill in the container, and pause still runs: the container can start.
        with engine.held("kill_container", sandbox) as pause_killed:
            with left_starting(rt, engine, container) as call:
                stop = pool.submit(stop_pod_sandbox, rt, sandbox_id=sandbox)
                pause_killed.wait_entered()
            with pytest.raises(FailedPrecondition, match="not ready"):
                call.result()
            assert not engine.inspect_container(container).state.running
        stop.result()
