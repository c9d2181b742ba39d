import threading
from dataclasses import replace

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base.deferred_checks import DeferredChecks
from shim.container.remove import remove_container
from shim.domain.errors import Unavailable
from shim.runtime import Runtime
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running
from tests.waits import wait_until


def test_removing_an_unknown_container_succeeds(rt: Runtime) -> None:
    remove_container(rt, container_id="f" * 64)


def test_a_running_container_is_removed_by_force(rt: Runtime, engine: FakeEngine) -> None:
    container = running(rt, ready_pod(rt))
    remove_container(rt, container_id=container[:16])
    assert container not in engine.containers
    assert container not in [record.id for record in rt.view.containers()]
    remove_container(rt, container_id=container)


def test_files_of_a_container_are_deleted_after_an_unanswered_removal(rt: Runtime, engine: FakeEngine) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    container = running(rt, ready_pod(rt))
    rt.limits.put(container, pb.LinuxContainerResources(cpu_shares=2))
    engine.lose_answer("remove_container", Unavailable("the connection was lost"))

    with pytest.raises(Unavailable):
        remove_container(rt, container_id=container)

    assert container not in engine.containers
    wait_until(lambda: rt.limits.get(container) is None)


def test_files_of_a_container_stay_until_it_is_removed(rt: Runtime, engine: FakeEngine) -> None:
    rt = replace(rt, deferred_checks=DeferredChecks(pause_seconds=0.01))
    container = running(rt, ready_pod(rt))
    rt.limits.put(container, pb.LinuxContainerResources(cpu_shares=2))
    engine.fail_next("remove_container", Unavailable("docker is restarted"))
    with pytest.raises(Unavailable):
        remove_container(rt, container_id=container)
    asked = len(engine.calls_of("inspect_container"))
    wait_until(lambda: len(engine.calls_of("inspect_container")) > asked + 2)
    assert rt.limits.get(container) is not None

    engine.remove_container(container)

    wait_until(lambda: rt.limits.get(container) is None)


def test_waits_for_an_external_removal_in_progress(rt: Runtime, engine: FakeEngine) -> None:
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
