import threading

from shim.container.remove import remove_container
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running


def test_an_unknown_container_is_removed_already(rt: Runtime) -> None:
    remove_container(rt, container_id="f" * 64)


def test_a_running_one_is_removed_by_force(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    remove_container(rt, container_id=container[:16])
    assert container not in engine.containers
    assert container not in [record.id for record in rt.view.containers()]
    remove_container(rt, container_id=container)


def test_removal_by_others_is_waited_for(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    with engine.held("remove_container", container) as gate:
        other = threading.Thread(target=engine.remove_container, args=(container,))
        other.start()
        gate.wait_entered()
        ours = threading.Thread(target=remove_container, args=(rt,), kwargs={"container_id": container})
        ours.start()
        ours.join(0.2)
        assert ours.is_alive()
    ours.join(10)
    other.join(10)
    assert not ours.is_alive()
    assert container not in engine.containers
