from shim.container.remove import remove_container
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.pods import created, ready_pod, running


def test_a_running_container_is_killed_first_so_that_its_output_is_copied(
    rt: Runtime, engine: FakeEngine, logs: FakeLogs
) -> None:
    container = running(rt, ready_pod(rt))
    remove_container(rt, container_id=container)
    done = [method for method, subject in engine.calls if subject == container]
    assert done.index("kill_container") < done.index("remove_container")
    assert container not in logs.followed


def test_a_stopped_container_is_just_removed(rt: Runtime, engine: FakeEngine) -> None:
    container = created(rt, ready_pod(rt))
    remove_container(rt, container_id=container)
    remove_container(rt, container_id=container)
    assert container not in engine.containers
    assert ("kill_container", container) not in engine.calls
