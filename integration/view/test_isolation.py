"""A container whose calls hang in Docker delays no answer about other containers."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK, container_config
from integration.pods.kubelet import Kubelet, Pod, unused_name
from integration.view.proxy import DockerProxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

SECOND = 1.0
"""Longest time of other RPCs while one hangs; an RPC that waited for it would take ten times as long."""

Act = Callable[[Kubelet, str], object]

HANGING: dict[str, tuple[str, Act]] = {
    "inspect": ("GET /containers/{}/json", lambda kubelet, container: kubelet.cri.stop_container(container)),
    "start": ("POST /containers/{}/start", lambda kubelet, container: kubelet.cri.start(container)),
    "kill": ("POST /containers/{}/kill", lambda kubelet, container: kubelet.cri.stop_container(container)),
    "stop": ("POST /containers/{}/stop", lambda kubelet, container: kubelet.cri.stop_container(container, timeout=1)),
    "remove": ("DELETE /containers/{}", lambda kubelet, container: kubelet.cri.remove_container(container)),
}


@pytest.mark.parametrize("what", HANGING)
def test_a_hanging_call_of_a_container_delays_no_other_rpc(kubelet: Kubelet, proxy: DockerProxy, what: str) -> None:
    pattern, act = HANGING[what]
    pod = kubelet.pod(linux=HOST_NETWORK)
    stuck, other = kubelet.created(pod), kubelet.created(pod)
    if what != "start":
        kubelet.cri.start(stuck)
    with ThreadPoolExecutor(1) as pool:
        with proxy.hanging(pattern.format(stuck)) as asked:
            hung = pool.submit(act, kubelet, stuck)
            assert asked.wait(10)
            took = timed_others(kubelet, pod, stuck=stuck, other=other)
            assert not hung.done()
        hung.result(20)
    assert {name: seconds for name, seconds in took.items() if seconds > SECOND} == {}


def timed_others(kubelet: Kubelet, pod: Pod, *, stuck: str, other: str) -> dict[str, float]:
    """Return the seconds of each RPC about other containers, and of reads of the hanging container."""
    cri, created = kubelet.cri, container_config(unused_name("late"), image=kubelet.image)
    image = pb.ImageStatusRequest(image=pb.ImageSpec(image=kubelet.image))
    calls: dict[str, Callable[[], object]] = {
        "Version": lambda: cri.runtime.Version(pb.VersionRequest()),
        "Status": lambda: cri.runtime.Status(pb.StatusRequest(verbose=True)),
        "ListPodSandbox": cri.sandboxes,
        "ListContainers": cri.containers,
        "PodSandboxStatus": lambda: cri.sandbox_status(pod.id),
        "ContainerStatus of it": lambda: cri.container_status(stuck),
        "ContainerStatus": lambda: cri.container_status(other),
        "ListImages": lambda: cri.images.ListImages(pb.ListImagesRequest()),
        "ImageStatus": lambda: cri.images.ImageStatus(image),
        "StartContainer": lambda: cri.start(other),
        "ExecSync": lambda: cri.exec(other, "true"),
        "StopContainer": lambda: cri.stop_container(other),
        "RemoveContainer": lambda: cri.remove_container(other),
        "CreateContainer": lambda: cri.create(pod.id, created, pod=pod.config),
    }
    return {name: _seconds(call) for name, call in calls.items()}


def _seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_container_that_docker_cannot_inspect_keeps_its_last_state(
    kubelet: Kubelet, proxy: DockerProxy, proxied: Served
) -> None:
    """Later the state is UNKNOWN with a message, until Docker inspects the container again."""
    pod = kubelet.pod(linux=HOST_NETWORK)
    container, other = kubelet.started(pod), kubelet.started(pod)
    cri = kubelet.cri
    with proxy.refusing(f"GET /containers/{container}/json"):
        proxied.engine.api.rename(container, unused_name("renamed"))
        assert cri.container_status(container).state == pb.CONTAINER_RUNNING
        unknown = wait_until(lambda: _status_in(kubelet, container, pb.CONTAINER_UNKNOWN))
        assert unknown is not None
        assert "Docker does not answer" in unknown.message
        assert cri.container_status(other).state == pb.CONTAINER_RUNNING
    wait_until(lambda: _status_in(kubelet, container, pb.CONTAINER_RUNNING), 40)


def _status_in(kubelet: Kubelet, container: str, state: pb.ContainerState) -> pb.ContainerStatus | None:
    status = kubelet.cri.container_status(container)
    return status if status.state == state else None
