"""The contract of every Engine, first part: containers, and the bounds of waits."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, NotFound
from shim.engine.errors import NameConflict
from shim.engine.interface import Engine
from tests.engine.contract import IMAGE_LABEL, LABEL, SECONDS, UNKNOWN, Subject, WatchedScope
from tests.fakes.engine_state import NEVER

# Description


def test_the_engine_answers(subject: Subject) -> None:
    subject.engine.ping()

    info = subject.engine.info()

    assert (1, 41) <= subject.engine.api_version <= (1, 51)
    assert info.cgroup_driver in {"cgroupfs", "systemd"}
    assert info.docker_root_dir.startswith("/")
    assert "runc" in (info.runtimes or {})
    assert subject.engine.daemon_pid() > 1


def test_an_answer_updates_answered_at(subject: Subject) -> None:
    before = time.monotonic()
    subject.engine.ping()
    after = time.monotonic()
    assert before <= subject.engine.answered_at <= after


# A container's life


def test_a_created_container_has_its_configuration(subject: Subject) -> None:
    name = next(subject.names)
    container_id = subject.engine.create_container(name=name, body=subject.body())
    seen = subject.engine.inspect_container(container_id)

    assert len(container_id) == 64
    assert (seen.id, seen.name) == (container_id, f"/{name}")
    assert (seen.state.status, seen.state.running, seen.state.pid) == ("created", False, 0)
    assert (seen.state.started_at, seen.state.finished_at) == (NEVER, NEVER)
    assert seen.config.image == subject.image
    assert seen.image == subject.engine.inspect_image(subject.image).id
    assert (seen.host_config.network_mode, seen.host_config.cpu_shares) == ("none", 512)
    assert "T" in seen.created
    assert seen.created.endswith("Z")


def test_container_labels_override_image_labels(subject: Subject) -> None:
    seen = subject.engine.inspect_container(subject.created())

    assert (seen.config.labels or {})[IMAGE_LABEL] == "image"
    assert (seen.config.labels or {})[LABEL] == "container"


def test_a_taken_name_is_a_conflict_that_names_the_holder(subject: Subject) -> None:
    name = next(subject.names)
    holder = subject.engine.create_container(name=name, body=subject.body())

    with pytest.raises(NameConflict) as failed:
        subject.engine.create_container(name=name, body=subject.body())

    assert failed.value.holder == holder


def test_a_container_of_a_missing_image_is_not_created(subject: Subject) -> None:
    with pytest.raises(NotFound, match="image"):
        subject.created(Image="example.invalid/missing:1")


def test_a_started_container_runs_and_starting_again_changes_nothing(subject: Subject) -> None:
    container_id = subject.running()
    first = subject.engine.inspect_container(container_id)
    subject.engine.start_container(container_id)

    assert (first.state.status, first.state.running) == ("running", True)
    assert first.state.pid > 1
    assert first.state.started_at > first.created
    assert first.log_path
    assert subject.engine.inspect_container(container_id).state == first.state


def test_the_log_path_of_the_driver_local_is_not_reported(subject: Subject) -> None:
    container_id = subject.running(HostConfig={"LogConfig": {"Type": "local", "Config": {"max-size": "1m"}}})
    seen = subject.engine.inspect_container(container_id)

    assert (seen.host_config.log_config.type, seen.log_path) == ("local", "")


def test_a_container_cannot_join_the_network_of_a_stopped_container(subject: Subject) -> None:
    pause = subject.created()
    container_id = subject.created(HostConfig={"NetworkMode": f"container:{pause}"})

    with pytest.raises(FailedPrecondition, match="non running container"):
        subject.engine.start_container(container_id)


def test_a_stopped_container_has_exited_and_can_be_stopped_again(subject: Subject) -> None:
    container_id = subject.running()
    subject.wait_executed(container_id)
    subject.engine.stop_container(container_id, grace=0)
    ended = subject.engine.inspect_container(container_id)
    subject.engine.stop_container(container_id, grace=0)

    assert (ended.state.status, ended.state.running, ended.state.pid) == ("exited", False, 0)
    assert ended.state.exit_code == 137, ended.state
    assert ended.state.finished_at > ended.state.started_at
    assert subject.engine.inspect_container(container_id).state == ended.state


def test_stopping_a_created_container_changes_nothing(subject: Subject) -> None:
    container_id = subject.created()
    subject.engine.stop_container(container_id, grace=0)

    assert subject.engine.inspect_container(container_id).state.status == "created"


@pytest.mark.parametrize("signal", ["SIGKILL", "KILL", "9"])
def test_a_killed_container_has_the_exit_code_of_its_signal(subject: Subject, signal: str) -> None:
    container_id = subject.running()
    subject.engine.kill_container(container_id, signal=signal)
    subject.engine.stop_container(container_id, grace=SECONDS)  # waits for the exit

    assert subject.engine.inspect_container(container_id).state.exit_code == 137


def test_a_container_that_is_not_running_cannot_be_killed(subject: Subject) -> None:
    with pytest.raises(FailedPrecondition, match="not running"):
        subject.engine.kill_container(subject.created(), signal="SIGKILL")


def test_a_running_container_is_removed_by_force(subject: Subject) -> None:
    container_id = subject.running()
    subject.engine.remove_container(container_id)
    subject.engine.wait_removed(container_id)

    with pytest.raises(NotFound):
        subject.engine.inspect_container(container_id)


def test_wait_removed_returns_after_a_removal_by_others(subject: Subject) -> None:
    container_id = subject.created()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subject.engine.wait_removed, container_id)
        subject.engine.remove_container(container_id)
        waiting.result(SECONDS)


def test_updated_resources_are_seen(subject: Subject) -> None:
    container_id = subject.running()
    subject.engine.update_container(container_id, body={"CpuShares": 256, "CpuPeriod": 100_000, "CpuQuota": 50_000})
    host = subject.engine.inspect_container(container_id).host_config

    assert (host.cpu_shares, host.cpu_period, host.cpu_quota) == (256, 100_000, 50_000)


def test_all_containers_are_listed(subject: Subject) -> None:
    created, running = subject.created(), subject.running()
    listed = {summary.id: summary for summary in subject.engine.list_containers()}

    assert (listed[created].state, listed[running].state) == ("created", "running")
    assert listed[running].names == [subject.engine.inspect_container(running).name]
    assert listed[running].image_id == subject.engine.inspect_image(subject.image).id
    assert listed[running].created > 0
    assert (listed[running].labels or {})[LABEL] == "container"


CALLS: dict[str, Callable[[Engine], object]] = {
    "inspect": lambda engine: engine.inspect_container(UNKNOWN),
    "start": lambda engine: engine.start_container(UNKNOWN),
    "stop": lambda engine: engine.stop_container(UNKNOWN, grace=0),
    "kill": lambda engine: engine.kill_container(UNKNOWN, signal="SIGKILL"),
    "remove": lambda engine: engine.remove_container(UNKNOWN),
    "update": lambda engine: engine.update_container(UNKNOWN, body={"CpuShares": 2}),
    "create_exec": lambda engine: engine.create_exec(UNKNOWN, body={"Cmd": ["true"]}),
    "inspect_exec": lambda engine: engine.inspect_exec(UNKNOWN),
    "inspect_image": lambda engine: engine.inspect_image("example.invalid/missing:1"),
    "remove_image": lambda engine: engine.remove_image("example.invalid/missing:1"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_an_unknown_id_is_not_found(subject: Subject, call: Callable[[Engine], object]) -> None:
    with pytest.raises(NotFound):
        call(subject.engine)


def test_an_unknown_exec_cannot_be_started(subject: Subject) -> None:
    with pytest.raises(NotFound), subject.engine.start_exec(UNKNOWN):
        pytest.fail("it was started")


def test_waiting_for_the_removal_of_an_unknown_container_returns(subject: Subject) -> None:
    subject.engine.wait_removed(UNKNOWN)


# Deadlines and cancellation


def test_a_wait_ends_with_its_deadline(subject: Subject) -> None:
    container_id = subject.running()

    with deadline.bound(0.2), pytest.raises(DeadlineExceeded, match=container_id):
        subject.engine.wait_removed(container_id)


def test_a_wait_ends_when_its_client_leaves(subject: Subject) -> None:
    container_id = subject.running()
    scope = WatchedScope()
    with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
        pool.submit(scope.cancel_once_waited_for)
        with pytest.raises(Cancelled, match=container_id):
            subject.engine.wait_removed(container_id)


@pytest.mark.parametrize("call", ["inspect_container", "start_container", "remove_container"])
def test_no_call_is_made_for_a_client_that_has_left(subject: Subject, call: str) -> None:
    container_id = subject.created()
    scope = Scope()
    scope.cancel()
    with deadline.entered(scope), pytest.raises(Cancelled):
        getattr(subject.engine, call)(container_id)

    assert subject.engine.inspect_container(container_id).state.status == "created"
