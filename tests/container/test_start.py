from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.deferred_checks import DeferredChecks
from shim.cgroup.places import Group
from shim.container.start import start_container
from shim.container.stop import stop_container
from shim.container.update import update_container_resources
from shim.domain.errors import AlreadyExists, DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable
from shim.domain.ids import ContainerId
from shim.pod import is_ready
from shim.runtime import Runtime
from shim.sandbox.stop import stop_pod_sandbox
from tests.cgroup.trees import new_group_v1
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.pods import created, ready_pod, running
from tests.waits import wait_until

SMALL = pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20))


def test_a_started_container_runs(rt: Runtime) -> None:
    record = rt.view.container(running(rt, ready_pod(rt)))
    assert record.state.phase == pb.CONTAINER_RUNNING
    assert record.state.started_at >= record.state.created_at > 0


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


def test_the_error_of_the_oci_runtime_is_returned(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    engine.fail_next("start_container", ShimError('exec: "nope": executable file not found'))
    with pytest.raises(ShimError, match="executable file not found"):
        start_container(rt, container_id=container)


def test_the_log_is_followed_before_the_start(rt: Runtime, engine: FakeEngine, logs: FakeLogs) -> None:
    """Docker reports the path of its file only after the start; it is the same path."""
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


def test_a_log_whose_path_docker_does_not_report_is_followed(rt: Runtime, logs: FakeLogs) -> None:
    """A container keeps the log driver of its create, even if the setting changes."""
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


def test_a_container_starts_even_if_its_log_cannot_be_written(rt: Runtime, logs: FakeLogs) -> None:
    logs.problem = "no space left on device"
    assert rt.view.container(running(rt, ready_pod(rt))).state.running


# --- a client that goes away during a start ---------------------------------------------------------------


@contextmanager
def left_starting(rt: Runtime, engine: FakeEngine, container: str) -> Iterator[Future[None]]:
    """Hold Docker's start of a container, with the client gone, inside the block."""
    scope = deadline.Scope()

    def start() -> None:
        with deadline.entered(scope):
            start_container(rt, container_id=container)

    with ThreadPoolExecutor(1) as pool, engine.held("start_container", container) as gate:
        call = pool.submit(start)
        gate.wait_entered()
        scope.cancel()
        yield call


def test_a_start_finishes_even_if_its_client_goes_away(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    with left_starting(rt, engine, container) as call:
        pass
    call.result()
    assert rt.view.container(container).state.running


def test_a_container_started_in_a_stopping_pod_is_killed_even_if_its_client_goes_away(
    rt: Runtime, engine: FakeEngine
) -> None:
    sandbox = ready_pod(rt)
    container = created(rt, sandbox)
    with ThreadPoolExecutor(1) as pool:
        # StopPodSandbox found no running container, and pause still runs: the container can start.
        with engine.held("kill_container", sandbox) as pause_killed:
            with left_starting(rt, engine, container) as call:
                stop = pool.submit(stop_pod_sandbox, rt, sandbox_id=sandbox)
                pause_killed.wait_entered()
            with pytest.raises(FailedPrecondition, match="not ready"):
                call.result()
            assert not engine.inspect_container(container).state.running
        stop.result()


def test_a_container_whose_limits_cannot_be_written_is_killed(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    container = created(rt, ready_pod(rt), linux=SMALL)

    def in_no_group(_id: str, *, pid: int) -> Group:
        raise NotFound(f"process {pid} is in no control group of container {container}")

    monkeypatch.setattr(rt.cgroups, "find", in_no_group)
    monkeypatch.setattr("shim.container.cgroup.ends", lambda _pid: False)  # the fake has no real processes
    with pytest.raises(FailedPrecondition, match=f"write limits of container {container}"):
        start_container(rt, container_id=container)
    assert rt.view.container(container).state.phase == pb.CONTAINER_EXITED


def test_a_container_that_exits_at_once_needs_no_limits(
    rt: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = ready_pod(rt)
    monkeypatch.setattr(rt.cgroups, "find", lambda _id, **_: new_group_v1(tmp_path, "pause"))
    container = created(rt, sandbox, linux=SMALL)
    gone = replace(new_group_v1(tmp_path, "other"), memory_directory=f"{tmp_path}/gone")
    monkeypatch.setattr(rt.cgroups, "find", lambda _id, **_: gone)
    start_container(rt, container_id=container)
    assert rt.view.container(container).state.running


def test_a_container_that_cannot_be_inspected_after_its_start_is_killed(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt), linux=SMALL)
    engine.fail_next("inspect_container", DeadlineExceeded("docker does not answer"))
    with pytest.raises(DeadlineExceeded):
        start_container(rt, container_id=container)
    assert not engine.inspect_container(container).state.running
    assert rt.view.container(container).state.phase == pb.CONTAINER_EXITED


def test_a_container_whose_start_docker_does_not_answer_is_killed(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = created(rt, ready_pod(rt))
    start = engine.start_container

    def start_without_answer(container_id: str) -> None:
        start(container_id)
        raise DeadlineExceeded("docker does not answer")

    monkeypatch.setattr(engine, "start_container", start_without_answer)
    with pytest.raises(DeadlineExceeded):
        start_container(rt, container_id=container)
    assert not engine.inspect_container(container).state.running
    assert rt.view.container(container).state.phase == pb.CONTAINER_EXITED


def left_created(rt: Runtime, engine: FakeEngine) -> ContainerId:
    """Create a container whose start Docker has neither answered nor performed."""
    container = created(rt, ready_pod(rt))
    engine.fail_next("start_container", Unavailable("docker is restarted"))
    with pytest.raises(Unavailable):
        start_container(rt, container_id=container)
    assert rt.view.container(container).state.phase == pb.CONTAINER_CREATED
    return container


def test_a_container_that_docker_starts_late_is_killed(rt: Runtime, engine: FakeEngine) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    container = left_created(rt, engine)
    engine.start_container(container)
    wait_until(lambda: not rt.deferred_checks.is_pending(f"container {container}, whose start has failed"))
    assert rt.view.container(container).state.phase == pb.CONTAINER_EXITED


def test_a_failed_kill_after_a_failed_start_is_repeated(
    rt: Runtime, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    container = created(rt, ready_pod(rt))

    def refused(*_: object) -> None:
        raise FailedPrecondition("no limits")

    monkeypatch.setattr("shim.container.start.ensure_limits", refused)
    engine.fail_next("kill_container", Unavailable("docker is restarted"))
    with pytest.raises(FailedPrecondition, match="no limits"):
        start_container(rt, container_id=container)
    wait_until(lambda: rt.view.container(container).state.phase == pb.CONTAINER_EXITED)
    wait_until(lambda: not rt.deferred_checks.is_pending(f"container {container}, whose start has failed"))


def test_a_second_start_is_not_killed_for_the_failure_of_the_first(rt: Runtime, engine: FakeEngine) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    container = left_created(rt, engine)
    assert rt.deferred_checks.is_pending(f"container {container}, whose start has failed")
    start_container(rt, container_id=container)
    wait_until(lambda: not rt.deferred_checks.is_pending(f"container {container}, whose start has failed"))
    assert engine.inspect_container(container).state.running


def test_an_update_waits_for_a_start(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    limits = pb.LinuxContainerResources(cpu_shares=512)
    with ThreadPoolExecutor(1) as pool, engine.held("start_container", container) as gate:
        starting = pool.submit(start_container, rt, container_id=container)
        gate.wait_entered()
        with deadline.bound(0.05), pytest.raises(DeadlineExceeded, match="wait for the lock"):
            update_container_resources(rt, container_id=container, linux=limits)
        assert ("update_container", container) not in engine.calls
    starting.result()
    update_container_resources(rt, container_id=container, linux=limits)
    assert engine.inspect_container(container).host_config.cpu_shares == 512


def test_two_containers_of_an_attempt_do_not_both_start(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first = created(rt, sandbox)
    failures = [ShimError("removal failed")] * 2
    engine.fail_next("remove_container", *failures)  # so both containers exist
    second = created(rt, sandbox, log_path="other.log")
    start_container(rt, container_id=first)
    with pytest.raises(AlreadyExists, match=f"attempt 0 of app runs in this pod as {first}"):
        start_container(rt, container_id=second)
    assert not engine.inspect_container(second).state.running


def test_two_containers_with_the_same_log_do_not_both_start(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    first, second = created(rt, sandbox, log_path="a.log"), created(rt, sandbox, "other", log_path="a.log")
    with ThreadPoolExecutor(2) as pool:
        with engine.held("start_container", first) as gate:
            starting = pool.submit(start_container, rt, container_id=first)
            gate.wait_entered()
            waiting = pool.submit(start_container, rt, container_id=second)
        starting.result()
        with pytest.raises(FailedPrecondition, match=f"container {first} writes to /var/log/pods/web/a.log"):
            waiting.result()
    stop_container(rt, container_id=first, timeout=0)
    start_container(rt, container_id=second)


def test_starts_of_a_pod_are_limited(rt: Runtime, engine: FakeEngine) -> None:
    sandbox, at_once, late = ready_pod(rt), 4, 3
    made = [created(rt, sandbox, f"c{number}") for number in range(at_once + late)]
    with ThreadPoolExecutor(len(made) + 1) as pool:
        with engine.held("start_container"):
            starts = [pool.submit(start_container, rt, container_id=each) for each in made]
            wait_until(lambda: any("starts" in str(row["lock"]) and row["waiting"] == late for row in rt.locks.rows()))
            stop = pool.submit(stop_pod_sandbox, rt, sandbox_id=sandbox)
            wait_until(lambda: not is_ready(rt.checkpoints, rt.view.sandbox(sandbox)))
        stop.result()
        for start in starts:
            with pytest.raises(FailedPrecondition):
                start.result()
    assert len(engine.calls_of("start_container")) == 1 + at_once  # together with pause
    assert not any(engine.inspect_container(each).state.running for each in made)
