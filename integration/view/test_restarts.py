"""Docker goes away and comes back: no answer in between, and the first one after it is complete."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import grpc
import pytest

from integration.conftest import Served, make_node_dirs, new_engine, serving
from integration.cri import HOST_NETWORK
from integration.node import images as node_images
from integration.node.box import HOME, Node
from integration.node.engine import Engine, remove_link
from integration.node.images import Image
from integration.pods.kubelet import Kubelet, Pod, unused_name
from integration.view.conftest import BRIDGE, configure_network
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

ROUNDS = 10

_SETTINGS: dict[str, object] = {
    # Another engine runs beside it, and of bridges and their rules a machine has one set.
    "bridge": "none",
    "iptables": False,
    "ip6tables": False,
    # What ignores SIGTERM, as pause and sleep do, would keep every stop waiting.
    "shutdown-timeout": 1,
}


@pytest.fixture
def own(node: Node, engine_name: str, pause_image: Image, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Run a server on an engine of its own, which may be stopped; the parameter is whether it has live-restore."""
    engine = new_engine(
        node, engine_name, home=HOME / unused_name("own"), **_SETTINGS, **{"live-restore": request.param}
    )
    engine.start()
    node_images.load(engine.api, pause_image)
    node_images.load(engine.api, node_images.busybox_image(node.busybox, reference=node_images.BUSYBOX, config={}))
    dirs = make_node_dirs(node, HOME / unused_name("restarts"))
    configure_network(dirs)
    with serving(engine, dirs) as made:
        yield made
    engine.api.close()
    engine.stop()
    remove_link(BRIDGE)


@dataclass(frozen=True, slots=True)
class Known:
    """A pod with a container, and how that was before."""

    pod: Pod
    container: str
    status: pb.ContainerStatus


def known(kubelet: Kubelet) -> Known:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)
    return Known(pod, container, kubelet.cri.container_status(container))


@pytest.mark.parametrize("own", [True], ids=["live-restore"], indirect=True)
def test_live_restore_keeps_containers_as_they_were(own: Served) -> None:
    before = known(Kubelet(own.cri, node_images.BUSYBOX))
    for number in range(ROUNDS):
        gone_and_back(own.engine, own, crash=number % 2 == 1)
        assert own.cri.container_status(before.container) == before.status
        assert own.cri.sandbox_status(before.pod.id).state == pb.SANDBOX_READY
    assert own.cri.exec(before.container, "echo", "here").stdout == b"here\n"
    own.cri.stop_container(before.container)


@pytest.mark.parametrize("own", [False], ids=["no live-restore"], indirect=True)
def test_without_live_restore_all_is_exited_and_nothing_vanished(own: Served) -> None:
    kubelet = Kubelet(own.cri, node_images.BUSYBOX)
    earlier: list[Known] = []
    for number in range(ROUNDS):
        earlier.append(known(kubelet))
        gone_and_back(own.engine, own, crash=number % 2 == 1)
        for each in earlier:
            status = own.cri.container_status(each.container)
            assert (status.state, status.started_at) == (pb.CONTAINER_EXITED, each.status.started_at)
            assert status.exit_code != 0
            assert own.cri.sandbox_status(each.pod.id).state == pb.SANDBOX_NOTREADY


def gone_and_back(engine: Engine, own: Served, *, crash: bool) -> None:
    """Stop the engine, or end it like a crash, look, and start it again; the first answer then is complete."""
    pods, containers = {pod.id for pod in own.cri.sandboxes()}, {one.id for one in own.cri.containers()}
    events = own.cri.runtime.GetContainerEvents(pb.GetEventsRequest())
    (engine.kill if crash else engine.stop)()

    wait_until(lambda: code_of_list(own) is grpc.StatusCode.UNAVAILABLE)
    assert end_of(events) is grpc.StatusCode.UNAVAILABLE
    condition = own.cri.runtime.Status(pb.StatusRequest()).status.conditions[0]
    assert (condition.type, condition.status, condition.reason) == ("RuntimeReady", False, "DockerDaemonNotReady")
    assert "docker" in condition.message
    for read in (own.cri.containers, lambda: own.cri.container_status(next(iter(containers)))):
        with pytest.raises(grpc.RpcError) as raised:
            read()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    engine.start()
    assert wait_until(lambda: ids_if_answered(own)) == (pods, containers)
    assert own.cri.runtime.Status(pb.StatusRequest()).status.conditions[0].status


def end_of(events: Iterable[pb.ContainerEventResponse]) -> grpc.StatusCode:
    """How a stream of events ends, whatever it brings before."""
    with pytest.raises(grpc.RpcError) as raised:
        for _ in events:
            pass
    return raised.value.code()


def code_of_list(own: Served) -> grpc.StatusCode:
    try:
        own.cri.sandboxes()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def ids_if_answered(own: Served) -> tuple[set[str], set[str]] | None:
    try:
        return {pod.id for pod in own.cri.sandboxes()}, {one.id for one in own.cri.containers()}
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None
