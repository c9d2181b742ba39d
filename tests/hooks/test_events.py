"""The events of pods and containers that a real plugin receives."""

import socket
import threading
from typing import Any

import pytest

from shim.api.nri import nri_pb2 as nri
from shim.api.v1 import api_pb2 as pb
from shim.container.create import create_container
from shim.container.list import list_containers
from shim.container.remove import remove_container
from shim.container.start import start_container
from shim.container.status import container_status
from shim.container.stop import stop_container
from shim.container.update import update_container_resources
from shim.domain.errors import FailedPrecondition, NotFound
from shim.runtime import Runtime
from shim.sandbox.list import list_pod_sandbox
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.status import pod_sandbox_status
from shim.sandbox.stop import stop_pod_sandbox
from shim.sandbox.update import update_pod_sandbox_resources
from tests.fakes.engine import FakeEngine
from tests.hooks.conftest import Connect
from tests.nri.plugin import Refused, TestPlugin
from tests.pods import container_config, created, ready_pod, running
from tests.waits import SECONDS, wait_change, wait_until

LIFE = [
    "RunPodSandbox",
    "CreateContainer",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
]


def refuse(_: object) -> None:
    raise Refused("no room")


def shown(node: Runtime) -> tuple[list[str], list[str]]:
    """Return the ids of the pods and containers that clients see."""
    return (
        [pod.id for pod in list_pod_sandbox(node, filter=pb.PodSandboxFilter())],
        [container.id for container in list_containers(node, filter=pb.ContainerFilter())],
    )


def test_a_plugin_receives_the_events_of_a_life_in_order(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    container = running(node, pod, envs=[pb.KeyValue(key="A", value=b"1")], args=["sleep", "9"])
    stop_container(node, container_id=container, timeout=1)
    remove_container(node, container_id=container)
    stop_pod_sandbox(node, sandbox_id=pod)
    remove_pod_sandbox(node, sandbox_id=pod)

    assert plugin.methods() == LIFE
    heard: Any = dict(plugin.heard)
    assert (heard["RunPodSandbox"].pod.id, heard["RunPodSandbox"].pod.namespace) == (pod, "default")
    asked = heard["CreateContainer"].container
    assert (asked.id, asked.name, asked.pod_sandbox_id) == (container, "app", pod)
    assert (list(asked.args), list(asked.env)) == (["sleep", "9"], ["A=1"])
    assert heard["StopContainer"].container.state == nri.CONTAINER_STOPPED


def test_removing_a_running_pod_sends_all_events_of_its_end(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    running(node, pod)
    remove_pod_sandbox(node, sandbox_id=pod)

    assert plugin.methods()[5:] == ["StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"]


def test_repeated_stops_and_removals_send_one_event(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    container = running(node, pod)
    for _ in range(2):
        stop_container(node, container_id=container, timeout=0)
        stop_pod_sandbox(node, sandbox_id=pod)
    for _ in range(2):
        remove_container(node, container_id=container)
        remove_pod_sandbox(node, sandbox_id=pod)

    assert sorted(plugin.methods()) == sorted(LIFE)


def test_an_exit_without_an_rpc_sends_stop_container(node: Runtime, connect: Connect, engine: FakeEngine) -> None:
    plugin = connect()
    container = running(node, ready_pod(node))
    engine.exit_container(container, exit_code=3)

    assert plugin.wait_heard("StopContainer").container.exit_code == 3
    remove_container(node, container_id=container)
    assert plugin.methods()[-2:] == ["StopContainer", "RemoveContainer"]


def test_an_external_removal_sends_remove_container(node: Runtime, connect: Connect, engine: FakeEngine) -> None:
    plugin = connect()
    container = running(node, ready_pod(node))
    engine.remove_container(container)

    assert plugin.wait_heard("RemoveContainer").container.id == container
    assert plugin.methods()[-2:] == ["StopContainer", "RemoveContainer"]


def test_a_create_in_a_stopped_pod_sends_no_event(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    stop_pod_sandbox(node, sandbox_id=pod)
    with pytest.raises(FailedPrecondition):
        created(node, pod)
    assert "CreateContainer" not in plugin.methods()


# Refusals


def test_a_pod_that_a_plugin_refuses_is_undone(node: Runtime, connect: Connect, engine: FakeEngine) -> None:
    plugin = connect()
    plugin.handlers["RunPodSandbox"] = refuse
    with pytest.raises(FailedPrecondition, match="NRI plugin 10-test: RunPodSandbox: no room"):
        ready_pod(node)

    assert engine.containers == {}
    assert plugin.methods() == ["RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"]
    del plugin.handlers["RunPodSandbox"]
    pod = ready_pod(node)
    assert shown(node) == ([pod], [])


def test_a_container_that_a_plugin_refuses_is_undone(node: Runtime, connect: Connect, engine: FakeEngine) -> None:
    plugin = connect()
    pod = ready_pod(node)
    plugin.handlers["CreateContainer"] = refuse
    with pytest.raises(FailedPrecondition, match="CreateContainer: no room"):
        created(node, pod)

    assert list(engine.containers) == [pod]
    assert plugin.methods()[1:] == ["CreateContainer", "RemoveContainer"]
    del plugin.handlers["CreateContainer"]
    created(node, pod)


def test_a_container_is_not_started_if_a_plugin_refuses_the_start(
    node: Runtime, connect: Connect, engine: FakeEngine
) -> None:
    plugin = connect()
    container = created(node, ready_pod(node))
    plugin.handlers["StartContainer"] = refuse
    with pytest.raises(FailedPrecondition, match="StartContainer: no room"):
        start_container(node, container_id=container)
    assert not engine.containers[container].running
    assert plugin.methods()[-2:] == ["StartContainer", "StopContainer"]


@pytest.mark.parametrize("event", ["StopContainer", "RemoveContainer", "StopPodSandbox", "RemovePodSandbox"])
def test_a_plugin_cannot_prevent_the_end_of_a_pod(
    node: Runtime, connect: Connect, engine: FakeEngine, event: str
) -> None:
    connect().handlers[event] = refuse
    pod = ready_pod(node)
    running(node, pod)
    remove_pod_sandbox(node, sandbox_id=pod)
    assert engine.containers == {}


@pytest.mark.parametrize("event", ["PostCreateContainer", "PostStartContainer", "PostUpdateContainer"])
def test_an_error_about_a_past_event_undoes_nothing(node: Runtime, connect: Connect, event: str) -> None:
    connect().handlers[event] = refuse
    container = running(node, ready_pod(node))
    update_container_resources(node, container_id=container, linux=pb.LinuxContainerResources(cpu_shares=512))
    assert node.view.container(container).host.cpu_shares == 512


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\1\xff\xff\xff\xff",
        b"\0\0\0\1\0\0\0\x0a\xff\xff\xff\xff\0\0\0\1\2\0",
        b"\0\0\0\2\0\0\0\x0b\0\0\0\1\0\0\0\1\1\0\xff",
        b"\0\0\0\1\0\0",
    ],
)
def test_a_plugin_that_breaks_the_protocol_is_dropped_and_the_pod_runs(
    node: Runtime, connect: Connect, garbage: bytes
) -> None:
    plugin, other = connect("10", "broken"), connect("20", "other")

    def break_it(_: object) -> None:
        plugin.socket.sendall(garbage)
        plugin.socket.shutdown(socket.SHUT_WR)

    plugin.handlers["CreateContainer"] = break_it
    running(node, ready_pod(node))

    assert "CreateContainer" in other.methods()
    wait_until(lambda: [row["name"] for row in node.nri.rows()] == ["20-other"])


# Before plugins have answered


def hold(plugin: TestPlugin, event: str) -> tuple[threading.Event, threading.Event]:
    """Make the plugin delay its answer. Return two events: the call has come, and the plugin may answer."""
    asked, release = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        asked.set()
        assert release.wait(SECONDS)

    plugin.handlers[event] = wait
    return asked, release


def test_clients_see_a_pod_once_plugins_have_answered(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    asked, release = hold(plugin, "RunPodSandbox")
    with node.view.subscribe() as changes:
        thread = threading.Thread(target=ready_pod, args=(node,))
        thread.start()
        assert asked.wait(SECONDS)
        assert shown(node) == ([], [])
        pod = node.view.sandboxes()[0].id
        with pytest.raises(NotFound, match=f"no pod sandbox has the id {pod}"):
            pod_sandbox_status(node, sandbox_id=pod, verbose=False)
        with pytest.raises(FailedPrecondition, match="is not ready"):
            created(node, pod)
        release.set()
        thread.join()
        assert shown(node) == ([pod], [])
        assert wait_change(changes).kind == pb.CONTAINER_CREATED_EVENT


def test_clients_see_a_container_once_plugins_have_answered(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    asked, release = hold(plugin, "CreateContainer")
    with node.view.subscribe() as changes:
        thread = threading.Thread(target=created, args=(node, pod))
        thread.start()
        assert asked.wait(SECONDS)
        assert shown(node) == ([pod], [])
        container = node.view.containers()[0].id
        with pytest.raises(NotFound, match=f"no container has the id {container}"):
            container_status(node, container_id=container, verbose=False)
        assert not pod_sandbox_status(node, sandbox_id=pod, verbose=False).containers_statuses
        with changes._changed:
            assert not changes._items
        release.set()
        thread.join()
        assert shown(node) == ([pod], [container])
        assert wait_change(changes).kind == pb.CONTAINER_CREATED_EVENT


def test_a_plugin_learns_once_of_a_container_created_while_it_registers(node: Runtime, connect: Connect) -> None:
    first = connect("05", "first")
    pod = ready_pod(node)
    asked, release = hold(first, "CreateContainer")
    making = threading.Thread(target=created, args=(node, pod))
    making.start()
    assert asked.wait(SECONDS)

    second: list[TestPlugin] = []
    joining = threading.Thread(target=lambda: second.append(connect("20", "second")))
    joining.start()
    release.set()
    making.join()
    joining.join()

    [plugin] = second
    seen = [each.id for each in plugin.wait_heard("Synchronize").containers]
    seen += [request.container.id for method, request in plugin.heard if method == "CreateContainer"]
    assert seen == [container.id for container in node.view.containers()]


def test_synchronize_has_pods_and_containers_that_have_not_ended(
    node: Runtime, connect: Connect, engine: FakeEngine
) -> None:
    pod = ready_pod(node)
    made, runs, ended = created(node, pod, "made"), running(node, pod, "runs"), running(node, pod, "ended")
    engine.exit_container(ended)
    node.view.refresh_container(ended)

    plugin = connect()
    request = plugin.wait_heard("Synchronize")
    assert [each.id for each in request.pods] == [pod]
    states = {each.id: each.state for each in request.containers}
    assert states == {made: nri.CONTAINER_CREATED, runs: nri.CONTAINER_RUNNING}
    engine.exit_container(runs)
    assert plugin.wait_heard("StopContainer").container.id == runs


# Updates


def limits(**cpu: Any) -> nri.LinuxContainerUpdate:
    return nri.LinuxContainerUpdate(resources=nri.LinuxResources(cpu=nri.LinuxCPU(**cpu)))


def shares(value: int) -> nri.OptionalUInt64:
    return nri.OptionalUInt64(value=value)


def test_a_plugin_adds_to_an_update(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    container = running(node, ready_pod(node))

    def update(request: nri.UpdateContainerRequest) -> nri.UpdateContainerResponse:
        assert request.linux_resources.cpu.shares.value == 512
        changed = nri.ContainerUpdate(container_id=request.container.id, linux=limits(cpus="0"))
        return nri.UpdateContainerResponse(update=[changed])

    plugin.handlers["UpdateContainer"] = update
    update_container_resources(node, container_id=container, linux=pb.LinuxContainerResources(cpu_shares=512))

    host = node.view.container(container).host
    assert (host.cpu_shares, host.cpuset_cpus) == (512, "0")
    assert plugin.methods()[-2:] == ["UpdateContainer", "PostUpdateContainer"]
    assert plugin.wait_heard("PostUpdateContainer").container.linux.resources.cpu.cpus == "0"


def test_an_answer_updates_other_containers(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    other = running(node, pod, "other")
    change = nri.ContainerUpdate(container_id=other, linux=limits(shares=shares(77)))
    plugin.handlers["CreateContainer"] = lambda _: nri.CreateContainerResponse(update=[change])
    container = running(node, pod)
    wait_until(lambda: node.view.container(other).host.cpu_shares == 77)

    change = nri.ContainerUpdate(container_id=other, linux=limits(shares=shares(88)))
    plugin.handlers["StopContainer"] = lambda _: nri.StopContainerResponse(update=[change])
    stop_container(node, container_id=container, timeout=0)
    wait_until(lambda: node.view.container(other).host.cpu_shares == 88)


def test_conflicting_updates_do_not_prevent_a_stop(node: Runtime, connect: Connect) -> None:
    pod = ready_pod(node)
    other, container = running(node, pod, "other"), running(node, pod)
    for index, value in (("10", 77), ("20", 88)):
        change = nri.ContainerUpdate(container_id=other, linux=limits(shares=shares(value)))
        answer = nri.StopContainerResponse(update=[change])
        connect(index).handlers["StopContainer"] = lambda _, answer=answer: answer  # type: ignore[misc]
    stop_container(node, container_id=container, timeout=0)
    wait_until(lambda: node.view.container(other).host.cpu_shares == 77)


def test_an_update_of_an_unknown_container_fails_unless_failures_are_ignored(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    change = nri.ContainerUpdate(container_id="nobody", linux=limits(shares=shares(7)))
    plugin.handlers["CreateContainer"] = lambda _: nri.CreateContainerResponse(update=[change])
    with pytest.raises(FailedPrecondition, match="an NRI plugin asked for an update: no container has the id nobody"):
        created(node, pod)
    change.ignore_failure = True
    created(node, pod)


def test_a_plugin_requests_updates_without_an_event(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    container = running(node, ready_pod(node))
    failed = plugin.update(
        nri.ContainerUpdate(container_id=container, linux=limits(shares=shares(99))),
        nri.ContainerUpdate(container_id="nobody", linux=limits(shares=shares(99))),
        nri.ContainerUpdate(container_id="nobody", linux=limits(shares=shares(99)), ignore_failure=True),
    )
    assert node.view.container(container).host.cpu_shares == 99
    assert [each.container_id for each in failed] == ["nobody"]
    assert "UpdateContainer" not in plugin.methods()


def test_an_update_of_a_limit_fixed_at_create_fails(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    container = running(node, ready_pod(node))
    resources = nri.LinuxResources(memory=nri.LinuxMemory(swappiness=nri.OptionalUInt64(value=5)))
    update = nri.ContainerUpdate(container_id=container, linux=nri.LinuxContainerUpdate(resources=resources))
    assert len(plugin.update(update)) == 1


def test_new_resources_of_a_pod_send_events(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    resources = pb.LinuxContainerResources(cpu_shares=5)
    request = pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id=pod, resources=resources)
    update_pod_sandbox_resources(node, request=request)
    assert plugin.methods()[1:] == ["UpdatePodSandbox", "PostUpdatePodSandbox"]
    assert plugin.wait_heard("UpdatePodSandbox").linux_resources.cpu.shares.value == 5

    plugin.handlers["UpdatePodSandbox"] = refuse
    with pytest.raises(FailedPrecondition, match="no room"):
        update_pod_sandbox_resources(node, request=request)


def test_replacing_a_container_of_the_same_attempt_sends_remove_container(node: Runtime, connect: Connect) -> None:
    plugin = connect()
    pod = ready_pod(node)
    first = created(node, pod)
    create_container(node, sandbox_id=pod, config=container_config("app"), sandbox_config=pb.PodSandboxConfig())
    assert plugin.wait_heard("RemoveContainer").container.id == first
