"""StopContainer and StopPodSandbox of paused, hanging and just starting containers and pods."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.pods.fault_proxy import Moment
from integration.pods.faulty_node import PLUGIN_SECONDS, FaultyNode
from integration.pods.faulty_plugin import TYPE
from integration.pods.kubelet import Kubelet, Pod, failure, in_namespaces, unused_name
from shim.api.v1 import api_pb2 as pb

START = "POST /containers/.*/start"
SECONDS = 20

# --- docker pause -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("timeout", "exit_code"), [(0, 137), (SECONDS, 143)], ids=["kill", "stop signal"])
def test_a_paused_container_is_stopped(
    served: Served, kubelet: Kubelet, pod: Pod, timeout: int, exit_code: int
) -> None:
    container = kubelet.started(pod)
    served.engine.api.pause(container)
    assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING

    served.cri.stop_container(container, timeout=timeout)

    status = served.cri.container_status(container)
    assert (status.state, status.exit_code) == (pb.CONTAINER_EXITED, exit_code)


def test_a_pod_with_a_paused_container_is_stopped(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    container = kubelet.started(pod)
    served.engine.api.pause(container)

    served.cri.stop(pod.id)

    assert served.cri.container_status(container).state == pb.CONTAINER_EXITED
    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
    served.cri.remove(pod.id)
    assert served.snapshot() == before


def test_a_pod_whose_pause_container_is_paused_is_stopped(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pod = kubelet.pod()
    served.engine.api.pause(pod.id)

    served.cri.stop(pod.id)

    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
    served.cri.remove(pod.id)
    assert served.snapshot() == before


# --- a DEL that hangs -------------------------------------------------------------------------------------


def test_a_hanging_network_release_times_out_and_is_repeated(faulty_node: FaultyNode) -> None:
    before = faulty_node.snapshot()
    sandbox = faulty_node.cri.run(pod_config(unused_name("hanging")))
    reserved = faulty_node.snapshot()[0].leases
    assert reserved != before[0].leases

    with faulty_node.plugin.before("DEL", "sleep 1000"), pytest.raises(grpc.RpcError) as refusal:
        faulty_node.cri.stop(sandbox)
    code, message = failure(refusal)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert f"cni DEL by plugin {faulty_node.plugin.directory / TYPE} for sandbox {sandbox}" in message
    assert f"not finished within {PLUGIN_SECONDS} s" in message
    assert faulty_node.cri.sandbox_status(sandbox).state == pb.SANDBOX_NOTREADY
    assert faulty_node.snapshot()[0].leases == reserved

    faulty_node.cri.stop(sandbox)
    assert faulty_node.snapshot()[0].leases == before[0].leases
    faulty_node.cri.remove(sandbox)
    assert faulty_node.snapshot() == before


# --- StartContainer at the same time ----------------------------------------------------------------------

OWN_PROCESSES = in_namespaces(pid=pb.CONTAINER)
"""With a separate PID namespace the container's processes do not end with pause."""


def running(served: Served, *ours: str) -> list[str]:
    """Return which of these containers run; pods of other tests share the engine."""
    ids = {row["Id"] for row in served.engine.api.containers(quiet=True)}
    return [container for container in ours if container in ids]


def created(faulty_node: FaultyNode, image: str) -> tuple[str, str]:
    """Return a sandbox and a container in it."""
    config = pod_config(unused_name("racing"))
    sandbox = faulty_node.cri.run(config)
    return sandbox, faulty_node.cri.create(sandbox, container_config("c", image=image, linux=OWN_PROCESSES), pod=config)


@pytest.mark.parametrize("moment", Moment, ids=lambda moment: f"{moment.name.lower()} start")
def test_a_container_that_starts_while_its_pod_stops_is_stopped(
    faulty_node: FaultyNode, images: Images, moment: Moment
) -> None:
    sandbox, container = created(faulty_node, images.busybox)

    def stop() -> None:
        faulty_node.cri.stop(sandbox)
        assert running(faulty_node.served, sandbox, container) == []

    with faulty_node.proxy.interrupted(START, stop, at=moment), pytest.raises(grpc.RpcError):
        faulty_node.cri.start(container)

    assert running(faulty_node.served, sandbox, container) == []
    faulty_node.cri.remove(sandbox)


def test_a_container_that_docker_starts_during_a_stop_is_stopped(faulty_node: FaultyNode, images: Images) -> None:
    """As a slow Docker does after the server that asked for the start was killed."""
    sandbox, container = created(faulty_node, images.busybox)
    api = faulty_node.served.engine.api

    with faulty_node.proxy.interrupted(
        f"POST /containers/{sandbox}/kill", lambda: api.start(container), at=Moment.BEFORE
    ):
        faulty_node.cri.stop(sandbox)

    assert running(faulty_node.served, sandbox, container) == []
    assert faulty_node.cri.container_status(container).state == pb.CONTAINER_EXITED
    faulty_node.cri.remove(sandbox)


def test_a_start_stops_its_container_if_a_concurrent_stop_saw_it_not_running(
    faulty_node: FaultyNode, images: Images
) -> None:
    sandbox, container = created(faulty_node, images.busybox)
    killing_pause, started = Event(), Event()

    def stop_as_far_as_pause() -> None:
        stops.append(pool.submit(faulty_node.cri.stop, sandbox))
        assert killing_pause.wait(SECONDS)

    def wait_started() -> None:
        killing_pause.set()
        assert started.wait(SECONDS)

    stops: list[Future[None]] = []
    with (
        ThreadPoolExecutor(1) as pool,
        faulty_node.proxy.interrupted(f"POST /containers/{sandbox}/kill", wait_started, at=Moment.BEFORE),
        faulty_node.proxy.interrupted(START, stop_as_far_as_pause, at=Moment.BEFORE),
    ):
        with pytest.raises(grpc.RpcError) as refusal:
            faulty_node.cri.start(container)
        assert running(faulty_node.served, sandbox, container) == [sandbox]
        started.set()
        stops[0].result()

    assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert running(faulty_node.served, sandbox, container) == []
    assert faulty_node.cri.container_status(container).exit_code == 137
    faulty_node.cri.remove(sandbox)


def test_concurrent_starts_and_stops_leave_nothing_running(served: Served, kubelet: Kubelet) -> None:
    before = served.snapshot()
    pods = [kubelet.pod() for _ in range(6)]
    containers = [kubelet.created(pod, linux=OWN_PROCESSES) for pod in pods]
    calls: list[Callable[[], None]] = []
    for pod, container in zip(pods, containers, strict=True):
        calls += [partial(served.cri.start, container), partial(served.cri.stop, pod.id)]

    with ThreadPoolExecutor(len(calls)) as pool:
        done = [pool.submit(call) for call in calls]
    for stopped in done[1::2]:
        stopped.result()
    for started in done[::2]:
        started.exception()  # it may have been refused

    assert running(served, *containers, *(pod.id for pod in pods)) == []
    for pod in pods:
        served.cri.remove(pod.id)
    assert served.snapshot() == before
