"""Docker stops and starts again: no answers in between, and the first answer afterwards is complete."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import HOST_NETWORK
from integration.node.mounts import mounts
from integration.pods.kubelet import Kubelet, Pod
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

ROUNDS = 10

Step = tuple[str, pb.ContainerEventType]
"""Container id and type of an event."""


@pytest.fixture
def kubelet(served: Served, images: Images, request: pytest.FixtureRequest) -> Iterator[Kubelet]:
    """Make pods on an engine that may be stopped; the parameter sets live-restore."""
    # Processes that ignore SIGTERM, such as pause and sleep, would delay every stop of Docker.
    settings = {"live-restore": request.param, "shutdown-timeout": 1}
    before = served.snapshot()
    with served.engine.configured(**settings):
        wait_until(lambda: ids_if_answered(served))
        made = Kubelet(served.cri, images.busybox)
        yield made
        made.remove_all()
    wait_until(lambda: ids_if_answered(served))
    assert served.snapshot() == before


@dataclass(frozen=True, slots=True)
class Known:
    """A pod with a container, and the container's status before the restart."""

    pod: Pod
    container: str
    status: pb.ContainerStatus


def known(kubelet: Kubelet) -> Known:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)
    return Known(pod, container, kubelet.cri.container_status(container))


@pytest.mark.parametrize("kubelet", [True], ids=["live-restore"], indirect=True)
def test_live_restore_keeps_containers_as_they_were(served: Served, kubelet: Kubelet) -> None:
    before = known(kubelet)
    for number in range(ROUNDS):
        gone_and_back(served, crash=number % 2 == 1)
        assert served.cri.container_status(before.container) == before.status
        assert served.cri.sandbox_status(before.pod.id).state == pb.SANDBOX_READY
    assert served.cri.exec(before.container, "echo", "here").stdout == b"here\n"
    served.cri.stop_container(before.container)


@pytest.mark.parametrize("kubelet", [True], ids=["live-restore"], indirect=True)
def test_a_stop_is_final_despite_a_restart_policy_given_by_hand(served: Served, kubelet: Kubelet) -> None:
    """Docker starts stopped containers with the policy `always` when dockerd starts."""
    before = known(kubelet)
    for each in (before.container, before.pod.id):
        served.engine.api.update_container(each, restart_policy={"Name": "always"})
    served.cri.stop_container(before.container)
    served.cri.stop(before.pod.id)
    gone_and_back(served, crash=False)
    for each in (before.container, before.pod.id):
        found = served.engine.api.inspect_container(each)
        assert (found["State"]["Running"], found["HostConfig"]["RestartPolicy"]["Name"]) == (False, "no")


@pytest.mark.parametrize("kubelet", [False], ids=["no live-restore"], indirect=True)
def test_without_live_restore_all_containers_are_exited_and_none_is_missing(served: Served, kubelet: Kubelet) -> None:
    earlier: list[Known] = []
    for number in range(ROUNDS):
        earlier.append(known(kubelet))
        reported = gone_and_back(served, crash=number % 2 == 1)
        # Their creation comes first if no client was subscribed then.
        stops = (who for who, step in reported if step == pb.CONTAINER_STOPPED_EVENT)
        ended = {earlier[-1].pod.id, earlier[-1].container}
        assert set(islice((who for who in stops if who in ended), 2)) == ended
        for each in earlier:
            status = served.cri.container_status(each.container)
            assert (status.state, status.started_at) == (pb.CONTAINER_EXITED, each.status.started_at)
            assert status.exit_code != 0
            assert served.cri.sandbox_status(each.pod.id).state == pb.SANDBOX_NOTREADY


@pytest.mark.parametrize("kubelet", [True], ids=["live-restore"], indirect=True)
def test_a_start_during_a_crash_of_dockerd_leaves_no_mount(served: Served, kubelet: Kubelet) -> None:
    container = kubelet.created(kubelet.pod(linux=HOST_NETWORK))
    before = len(mounts())
    start = served.cri.runtime.StartContainer.future(pb.StartContainerRequest(container_id=container))
    wait_until(lambda: len(mounts()) > before)
    served.engine.kill()
    served.engine.start()
    with suppress(grpc.RpcError):
        start.result()
    wait_until(lambda: ids_if_answered(served))
    kubelet.remove_all()
    # The fixture compares the mounts before and after.


def gone_and_back(served: Served, *, crash: bool) -> Iterator[Step]:
    """Stop or kill the engine, check the server, and start the engine again; the first answer then is complete.

    Returns the events of a client that subscribes again as soon as its stream ends.
    """
    events = served.cri.runtime.GetContainerEvents(pb.GetEventsRequest())
    pods, containers = {pod.id for pod in served.cri.sandboxes()}, {one.id for one in served.cri.containers()}
    (served.engine.kill if crash else served.engine.stop)()

    wait_until(lambda: code_of_list(served) is grpc.StatusCode.UNAVAILABLE)
    before = steps_before_loss(events)
    # Docker counts as ready for 2 s after its last answer, if a refused connection takes long on a busy machine.
    condition = wait_until(lambda: not_ready(served))
    assert condition is not None
    assert (condition.type, condition.status, condition.reason) == ("RuntimeReady", False, "DockerDaemonNotReady")
    assert "docker" in condition.message
    for read in (served.cri.containers, lambda: served.cri.container_status(next(iter(containers)))):
        with pytest.raises(grpc.RpcError) as raised:
            read()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE

    after = served.cri.runtime.GetContainerEvents(pb.GetEventsRequest())
    served.engine.start()
    assert wait_until(lambda: ids_if_answered(served)) == (pods, containers)
    assert served.cri.runtime.Status(pb.StatusRequest()).status.conditions[0].status
    return chain(before, map(step_of, after))


def not_ready(served: Served) -> pb.RuntimeCondition | None:
    """Return the condition of the runtime, once it is not ready."""
    condition = served.cri.runtime.Status(pb.StatusRequest()).status.conditions[0]
    return None if condition.status else condition


def steps_before_loss(events: Iterable[pb.ContainerEventResponse]) -> list[Step]:
    """Return the events of a stream before it ends with the loss of Docker."""
    steps: list[Step] = []
    with pytest.raises(grpc.RpcError) as raised:
        steps.extend(map(step_of, events))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    return steps


def step_of(event: pb.ContainerEventResponse) -> Step:
    return event.container_id, event.container_event_type


def code_of_list(served: Served) -> grpc.StatusCode:
    try:
        served.cri.sandboxes()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def ids_if_answered(served: Served) -> tuple[set[str], set[str]] | None:
    try:
        return {pod.id for pod in served.cri.sandboxes()}, {one.id for one in served.cri.containers()}
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return None
