"""StopContainer and StopPodSandbox of what does not want to stop: frozen, hanging, or only just starting."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Event

import grpc
import pytest

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.pods.frail import PLUGIN_SECONDS, Frail
from integration.pods.kubelet import Kubelet, Pod, failure, in_namespaces, unused_name
from integration.pods.plugin import TYPE
from integration.pods.wire import Moment
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
    before = served.traces()
    pod = kubelet.pod()
    container = kubelet.started(pod)
    served.engine.api.pause(container)

    served.cri.stop(pod.id)

    assert served.cri.container_status(container).state == pb.CONTAINER_EXITED
    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
    served.cri.remove(pod.id)
    assert served.traces() == before


def test_a_pod_whose_pause_container_is_paused_is_stopped(served: Served, kubelet: Kubelet) -> None:
    before = served.traces()
    pod = kubelet.pod()
    served.engine.api.pause(pod.id)

    served.cri.stop(pod.id)

    assert served.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY
    served.cri.remove(pod.id)
    assert served.traces() == before


# --- a DEL that hangs -------------------------------------------------------------------------------------


def test_a_release_that_hangs_is_given_up_and_repeated(frail: Frail) -> None:
    before = frail.traces()
    sandbox = frail.cri.run(pod_config(unused_name("hanging")))
    reserved = frail.traces()[0].leases
    assert reserved != before[0].leases

    with frail.plugin.before("DEL", "sleep 1000"), pytest.raises(grpc.RpcError) as refusal:
        frail.cri.stop(sandbox)
    code, message = failure(refusal)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    assert f"cni DEL by plugin {frail.plugin.directory / TYPE} for sandbox {sandbox}" in message
    assert f"not finished within {PLUGIN_SECONDS} s" in message
    assert frail.cri.sandbox_status(sandbox).state == pb.SANDBOX_NOTREADY
    assert frail.traces()[0].leases == reserved

    frail.cri.stop(sandbox)
    assert frail.traces()[0].leases == before[0].leases
    frail.cri.remove(sandbox)
    assert frail.traces() == before


# --- StartContainer at the same time ----------------------------------------------------------------------

OWN_PROCESSES = in_namespaces(pid=pb.CONTAINER)
"""Its processes do not end with those of pause, whose pid namespace is another."""


def running(served: Served, *ours: str) -> list[str]:
    """Give those that run, of these: pods of other tests share the engine."""
    ids = {row["Id"] for row in served.engine.api.containers(quiet=True)}
    return [container for container in ours if container in ids]


def created(frail: Frail, image: str) -> tuple[str, str]:
    """Give a sandbox and a container in it."""
    config = pod_config(unused_name("racing"))
    sandbox = frail.cri.run(config)
    return sandbox, frail.cri.create(sandbox, container_config("c", image=image, linux=OWN_PROCESSES), pod=config)


@pytest.mark.parametrize("moment", Moment, ids=lambda moment: f"{moment.name.lower()} start")
def test_a_container_that_starts_while_its_pod_is_stopped_does_not_run_on(
    frail: Frail, images: Images, moment: Moment
) -> None:
    sandbox, container = created(frail, images.busybox)

    def stop() -> None:
        frail.cri.stop(sandbox)
        assert running(frail.served, sandbox, container) == []

    with frail.wire.interrupted(START, stop, at=moment), pytest.raises(grpc.RpcError):
        frail.cri.start(container)

    assert running(frail.served, sandbox, container) == []
    frail.cri.remove(sandbox)


def test_a_container_that_docker_starts_for_nobody_in_the_middle_of_a_stop_is_ended(
    frail: Frail, images: Images
) -> None:
    """As it does when the server was killed that had asked for it, and Docker was slow."""
    sandbox, container = created(frail, images.busybox)
    api = frail.served.engine.api

    with frail.wire.interrupted(f"POST /containers/{sandbox}/kill", lambda: api.start(container), at=Moment.BEFORE):
        frail.cri.stop(sandbox)

    assert running(frail.served, sandbox, container) == []
    assert frail.cri.container_status(container).state == pb.CONTAINER_EXITED
    frail.cri.remove(sandbox)


def test_a_container_that_stop_found_not_running_is_ended_by_its_start(frail: Frail, images: Images) -> None:
    sandbox, container = created(frail, images.busybox)
    killing_pause, started = Event(), Event()

    def stop_as_far_as_pause() -> None:
        stops.append(pool.submit(frail.cri.stop, sandbox))
        assert killing_pause.wait(SECONDS)

    def wait_started() -> None:
        killing_pause.set()
        assert started.wait(SECONDS)

    stops: list[Future[None]] = []
    with (
        ThreadPoolExecutor(1) as pool,
        frail.wire.interrupted(f"POST /containers/{sandbox}/kill", wait_started, at=Moment.BEFORE),
        frail.wire.interrupted(START, stop_as_far_as_pause, at=Moment.BEFORE),
    ):
        with pytest.raises(grpc.RpcError) as refusal:
            frail.cri.start(container)
        assert running(frail.served, sandbox, container) == [sandbox]
        started.set()
        stops[0].result()

    assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION
    assert running(frail.served, sandbox, container) == []
    assert frail.cri.container_status(container).exit_code == 137
    frail.cri.remove(sandbox)


def test_starts_and_stops_at_the_same_time_leave_nothing_running(served: Served, kubelet: Kubelet) -> None:
    before = served.traces()
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
    assert served.traces() == before
