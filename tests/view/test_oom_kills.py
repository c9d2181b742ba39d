"""An OOM-killed container has the reason OOMKilled, also if Docker has missed the kill."""

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.view.node_view import NodeView
from tests.fakes.logs import FakeLogs
from tests.view.late import LateEngine
from tests.view.samples import create_container, create_sandbox


class Kernel:
    """A kernel log with OOM kills of groups and of processes."""

    def __init__(self) -> None:
        self.groups: set[str] = set()
        self.processes: set[int] = set()
        self.asked: list[str] = []

    def include(self, container_id: str, *, pid: int, started_at: int) -> bool:
        assert started_at > 0
        self.asked.append(container_id)
        if pid in self.processes:
            self.groups.add(container_id)
        return container_id in self.groups


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def view(engine: LateEngine, kernel: Kernel) -> NodeView:
    made = NodeView(engine, kills=kernel, sync_timeout=0)
    made.complete_sync(made.begin_sync())
    return made


def running(engine: LateEngine, view: NodeView) -> str:
    """Return a container that the view knows as running."""
    container_id = create_container(engine, create_sandbox(engine), start=True)
    assert view.refresh_container(container_id) is not None
    return container_id


def reason(view: NodeView, container_id: str) -> str:
    view.refresh_container(container_id)
    state = view.container(container_id).state
    assert state.phase == pb.CONTAINER_EXITED
    return state.reason


@pytest.mark.parametrize("oom_killed", [False, True])
def test_a_kill_of_the_containers_group_sets_the_flag(
    engine: LateEngine, view: NodeView, kernel: Kernel, oom_killed: bool
) -> None:
    container_id = running(engine, view)
    kernel.groups.add(container_id)
    engine.exit_container(container_id, exit_code=137, oom_killed=oom_killed)
    assert reason(view, container_id) == "OOMKilled"
    assert kernel.asked == ([] if oom_killed else [container_id])


def test_a_kill_of_the_first_process_sets_the_flag(engine: LateEngine, view: NodeView, kernel: Kernel) -> None:
    container_id = running(engine, view)
    kernel.processes.add(view.container(container_id).state.pid)
    engine.exit_container(container_id, exit_code=137)
    assert [reason(view, container_id) for _ in range(2)] == ["OOMKilled", "OOMKilled"]


def test_the_first_process_of_an_unseen_run_is_unknown(engine: LateEngine, view: NodeView, kernel: Kernel) -> None:
    container_id = running(engine, view)
    kernel.processes.add(view.container(container_id).state.pid)
    engine.exit_container(container_id, exit_code=1)
    engine.start_container(container_id)
    engine.exit_container(container_id, exit_code=137)
    assert reason(view, container_id) == "Error"


@pytest.mark.parametrize(("exit_code", "expected"), [(0, "Completed"), (1, "Error"), (143, "Error")])
def test_a_kill_before_another_exit_code_is_no_oom_exit(
    engine: LateEngine, view: NodeView, kernel: Kernel, exit_code: int, expected: str
) -> None:
    container_id = running(engine, view)
    kernel.groups.add(container_id)
    engine.exit_container(container_id, exit_code=exit_code)
    assert reason(view, container_id) == expected
    assert kernel.asked == []


def test_another_sigkill_is_no_oom_exit(engine: LateEngine, view: NodeView, kernel: Kernel) -> None:
    container_id, other = running(engine, view), "another"
    kernel.groups.add(other)
    engine.exit_container(container_id, exit_code=137)
    assert reason(view, container_id) == "Error"
    assert kernel.asked == [container_id]


def test_running_containers_are_not_looked_up(engine: LateEngine, view: NodeView, kernel: Kernel) -> None:
    container_id = running(engine, view)
    kernel.groups.add(container_id)
    view.refresh_container(container_id)
    assert view.container(container_id).state.reason == ""
    assert kernel.asked == []


def test_a_pending_exit_keeps_its_oom_reason(engine: LateEngine, kernel: Kernel) -> None:
    logs = FakeLogs()
    view = NodeView(engine, logs=logs, kills=kernel, sync_timeout=0)
    logs.on_drained = view.publish_exit
    view.complete_sync(view.begin_sync())
    container_id = running(engine, view)
    kernel.processes.add(view.container(container_id).state.pid)
    logs.holding = True
    engine.exit_container(container_id, exit_code=137)
    for _ in range(2):
        view.refresh_container(container_id)
    assert view.container(container_id).state.running
    view.publish_exit(container_id)
    assert view.container(container_id).state.reason == "OOMKilled"
