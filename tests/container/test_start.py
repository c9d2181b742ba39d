from dataclasses import replace

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.start import start_container
from shim.errors import FailedPrecondition, NotFound, ShimError
from shim.runtime import Runtime
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


def test_a_log_that_docker_tells_nothing_of_is_followed(rt: Runtime, logs: FakeLogs) -> None:
    """The container keeps the driver it was made with; one made before the setting was changed goes on with its own."""
    pod = ready_pod(rt)
    before = created(rt, pod, "before")
    changed = replace(rt, config=msgspec.structs.replace(rt.config, docker_log_driver="local"))
    after = running(changed, pod, "after")
    start_container(changed, container_id=before)

    assert (logs.followed[after].driver, logs.followed[after].docker) == (
        "local",
        f"/var/lib/docker/containers/{after}/local-logs/container.log",
    )
    assert logs.followed[after].docker == rt.view.container(after).docker_log_path
    assert logs.followed[before].driver == "json-file"


def test_without_a_log_path_nothing_is_followed(rt: Runtime, logs: FakeLogs) -> None:
    running(rt, ready_pod(rt), log_path="")
    running(rt, ready_pod(rt, "silent", log_directory=""))
    assert logs.followed == {}


def test_a_log_that_cannot_be_written_keeps_no_container_from_starting(rt: Runtime, logs: FakeLogs) -> None:
    logs.problem = "no space left on device"
    assert rt.view.container(running(rt, ready_pod(rt))).life.running
