"""An exit is published when its log is drained, to lists, statuses and events alike."""

import threading
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain.errors import DeadlineExceeded
from shim.engine.answers import HostSettings
from shim.logs.interface import ContainerLog, Drains
from shim.view.changes import DELETED, STARTED, STOPPED
from shim.view.node_view import NodeView
from shim.view.pending_exits import NoLogs, follow_log, log_of, visible_record
from shim.view.records import ContainerRecord, Record
from shim.view.translate import from_list_only
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.view.samples import container, container_state, create_container, create_sandbox
from tests.waits import wait_change

EXITED = replace(container_state(pb.CONTAINER_EXITED, started=5, finished=9, reason="Error"), exit_code=3, message="m")


@pytest.fixture
def logs() -> FakeLogs:
    return FakeLogs()


@pytest.fixture
def view(engine: FakeEngine, logs: FakeLogs) -> NodeView:
    made = NodeView(engine, logs=logs)
    logs.on_drained = made.publish_exit
    made.complete_sync(made.begin_sync())
    return made


def ended(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> str:
    """Return a container that was seen running and has exited, with output that is not in its log yet."""
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    logs.holding = True
    engine.exit_container(container_id, exit_code=3)
    view.refresh_container(container_id)
    return container_id


def logged(**changes: object) -> ContainerRecord:
    made = replace(container(state=EXITED), log_path="/pod/0.log", docker_log_path="/docker/c-json.log")
    return replace(made, **changes)  # type: ignore[arg-type]


# Visible records


def shown(record: ContainerRecord, logs: Drains) -> Record | None:
    return visible_record(record, drained=follow_log(record, logs))


def test_a_running_container_is_followed(logs: FakeLogs) -> None:
    record = logged(state=container_state(pb.CONTAINER_RUNNING, started=5))
    assert shown(record, logs) is record
    assert logs.followed == {
        "c1": ContainerLog(id="c1", docker="/docker/c-json.log", cri="/pod/0.log", created_at=record.state.created_at)
    }


def test_a_container_is_visible_as_running_until_its_log_is_drained(logs: FakeLogs) -> None:
    logs.holding = True
    visible = shown(logged(), logs)
    assert isinstance(visible, ContainerRecord)
    assert visible.state.running
    now = visible.state
    assert (now.exit_code, now.reason, now.message, now.finished_at, now.started_at, now.pid) == (0, "", "", 0, 5, 0)
    logs.release("c1")
    assert shown(logged(), logs) == logged()


@pytest.mark.parametrize(
    "changes",
    [
        {"log_path": ""},
        {"legacy": True},
        {"state": container_state(pb.CONTAINER_CREATED)},
        {"state": replace(EXITED, reason="StartError")},
    ],
    ids=["without-a-log", "of-another-shim", "created", "never-ran"],
)
def test_an_exit_without_a_log_to_wait_for_is_visible(logs: FakeLogs, changes: dict[str, object]) -> None:
    logs.holding = True
    record = logged(**changes)
    assert shown(record, logs) is record


def test_without_logs_every_exit_is_visible() -> None:
    assert shown(logged(), NoLogs()) == logged()


def test_log_of_takes_a_path_that_the_record_lacks() -> None:
    assert log_of(logged(docker_log_path=""), docker="/guess").docker == "/guess"


@pytest.mark.parametrize(
    ("settings", "driver"),
    [({"Type": "local"}, "local"), ({"Type": "json-file"}, "json-file"), ({}, "json-file")],
    ids=["local", "json-file", "not-reported"],
)
def test_log_of_has_the_driver_of_the_container(settings: dict[str, str], driver: str) -> None:
    host = msgspec.convert({"LogConfig": settings}, HostSettings)
    assert log_of(logged(host=host)).driver == driver


# In the view


def test_the_log_path_of_an_unreporting_driver_is_known(engine: FakeEngine, logs: FakeLogs) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    engine.containers[container_id].host["LogConfig"] = {"Type": "local"}
    view = NodeView(engine, logs=logs, docker_root=lambda: "/docker")
    view.refresh_container(container_id)

    log = logs.followed[container_id]
    assert (log.driver, log.docker) == ("local", f"/docker/containers/{container_id}/local-logs/container.log")


def test_lists_statuses_and_events_agree(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = create_container(engine, create_sandbox(engine))
    view.refresh_container(container_id)
    logs.holding = True
    with view.subscribe() as changes:
        engine.start_container(container_id)
        engine.exit_container(container_id, exit_code=3)
        view.refresh_container(container_id)
        assert view.container(container_id).state.running
        assert [record.state.running for record in view.containers()] == [True]
        assert wait_change(changes).kind == STARTED
        logs.release(container_id)
        assert (view.container(container_id).state.phase, view.container(container_id).state.exit_code) == (
            pb.CONTAINER_EXITED,
            3,
        )
        assert [record.state.running for record in view.containers()] == [False]
        stopped = wait_change(changes)
        assert stopped.kind == STOPPED
        assert stopped.record == view.container(container_id)


def test_another_inspect_keeps_the_exit_pending(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = ended(engine, view, logs)
    for _ in range(3):
        view.refresh_container(container_id)
    assert view.container(container_id).state.running
    logs.release(container_id)
    view.refresh_container(container_id)
    assert not view.container(container_id).state.running


def test_a_restart_drops_the_pending_exit(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = ended(engine, view, logs)
    engine.start_container(container_id)
    view.refresh_container(container_id)
    logs.release(container_id)
    assert view.container(container_id).state.running
    assert view.container(container_id).state.pid


def test_a_removal_publishes_the_pending_exit(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = ended(engine, view, logs)
    with view.subscribe() as changes:
        view.forget(container_id)
        reported = [wait_change(changes) for _ in range(2)]
    assert [(change.kind, change.record.state.exit_code) for change in reported] == [(STOPPED, 3), (DELETED, 3)]
    assert reported[0].record.state.message == ""
    logs.release(container_id)
    assert view.containers() == ()
    assert container_id not in logs.followed


def test_refresh_exited_waits_until_the_log_is_drained(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = ended(engine, view, logs)
    waiting = threading.Thread(target=view.refresh_exited, args=(container_id,))
    waiting.start()
    with deadline.bound(0.05), pytest.raises(DeadlineExceeded, match="last output"):
        view.refresh_exited(container_id)
    assert waiting.is_alive()
    logs.release(container_id)
    waiting.join()
    view.refresh_exited(container_id)
    assert not view.container(container_id).state.running


def found_ended(engine: FakeEngine, logs: FakeLogs) -> tuple[NodeView, str]:
    """Return a view whose first sync found an exited container, and whose log could not be drained in time."""
    container_id = create_container(engine, create_sandbox(engine), start=True)
    engine.exit_container(container_id)
    logs.holding = True
    view = NodeView(engine, logs=logs)
    epoch = view.begin_sync()
    view.refresh_container(container_id)
    assert view.complete_sync(epoch, timeout=0.01)
    return view, container_id


def test_the_first_sync_publishes_pending_exits(engine: FakeEngine, logs: FakeLogs) -> None:
    """Clients may have seen these exits before; they must not see the container run again."""
    view, container_id = found_ended(engine, logs)
    assert not view.container(container_id).state.running


def test_an_unknown_container_stays_unknown_until_its_exit(engine: FakeEngine, logs: FakeLogs) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    engine.exit_container(container_id)
    logs.holding = True
    view = NodeView(engine, logs=logs)
    logs.on_drained = view.publish_exit
    (listed,) = [each for each in engine.list_containers() if each.id == container_id]
    epoch = view.begin_sync()
    engine.fail_next("inspect_container", DeadlineExceeded("slow"))
    with pytest.raises(DeadlineExceeded):
        view.refresh_container(container_id, fallback=partial(from_list_only, listed=listed))
    assert view.complete_sync(epoch, timeout=0.01)

    with view.subscribe() as changes:
        view.refresh_container(container_id)
        assert view.container(container_id).state.phase == pb.CONTAINER_UNKNOWN
        logs.release(container_id)
        assert view.container(container_id).state.phase == pb.CONTAINER_EXITED
        assert wait_change(changes).kind == STOPPED


def test_a_published_exit_stays_visible(engine: FakeEngine, logs: FakeLogs) -> None:
    """The log may never be drained. A later refresh must not show the container as running again, but a start must."""
    view, container_id = found_ended(engine, logs)
    with view.subscribe() as changes:
        view.refresh_container(container_id)
        assert not view.container(container_id).state.running
        engine.start_container(container_id)
        view.refresh_container(container_id)
        assert wait_change(changes).kind == STARTED
    engine.exit_container(container_id)
    view.refresh_container(container_id)
    assert view.container(container_id).state.running  # the exit of the second run is pending


def test_exits_stay_pending_through_a_later_sync(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = ended(engine, view, logs)
    view.disconnect("docker is away")
    assert view.complete_sync(view.begin_sync(), timeout=0.01)
    assert view.container(container_id).state.running


def test_an_exit_that_docker_missed_is_pending_too(engine: FakeEngine, view: NodeView, logs: FakeLogs) -> None:
    container_id = create_container(engine, create_sandbox(engine), start=True)
    view.refresh_container(container_id)
    logs.holding = True
    view.mark_missed_exit(view.container(container_id))
    view.refresh_container(container_id)  # Docker still reports it as running
    assert view.container(container_id).state.running
    logs.release(container_id)
    view.refresh_container(container_id)
    assert (view.container(container_id).state.phase, view.container(container_id).state.exit_code) == (
        pb.CONTAINER_EXITED,
        255,
    )
