"""Failures of the image store do not affect pods, also after a reconnect to Docker."""

import re

import grpc
import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK
from integration.pods.kubelet import Kubelet
from integration.view.proxy import DockerProxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


def outage(served: Served) -> str:
    """Return the error of ListContainers; empty if it succeeds."""
    try:
        served.cri.containers()
    except grpc.RpcError as error:
        return str(error.details())
    return ""


def images(served: Served) -> str:
    """Return the error of ListImages; empty if it succeeds."""
    try:
        served.cri.images.ListImages(pb.ListImagesRequest())
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"
    return ""


def test_pods_are_served_while_images_cannot_be_listed(kubelet: Kubelet, proxy: DockerProxy, proxied: Served) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)
    cri = proxied.cri
    with proxy.refusing("GET /images/json"):
        proxy.cut()
        wait_until(lambda: re.match("UNAVAILABLE: .*input/output", images(proxied)))
        wait_until(lambda: not outage(proxied))
        assert cri.container_status(container).state == pb.CONTAINER_RUNNING
        assert cri.runtime.Status(pb.StatusRequest()).status.conditions[0].status

        other = kubelet.pod(linux=HOST_NETWORK)
        kubelet.started(other)
        for name in (kubelet.image, "missing/image:1"):
            found = cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=name)))
            assert found.HasField("image") == (name == kubelet.image)
        assert "images are not known" in images(proxied)
    wait_until(lambda: not images(proxied), 40)


def test_an_image_that_cannot_be_inspected_keeps_its_status(
    kubelet: Kubelet, proxy: DockerProxy, proxied: Served
) -> None:
    cri, image = proxied.cri, pb.ImageSpec(image=kubelet.image)
    wait_until(lambda: not images(proxied))
    image_id = cri.images.ImageStatus(pb.ImageStatusRequest(image=image)).image.id
    with proxy.refusing(f"GET /images/{image_id}/json"):
        proxy.cut()
        wait_until(lambda: not outage(proxied) and not images(proxied))
        assert cri.images.ImageStatus(pb.ImageStatusRequest(image=image)).image.id == image_id


def test_the_error_of_docker_is_reported_if_containers_cannot_be_listed(proxy: DockerProxy, proxied: Served) -> None:
    """The reason is Docker's error, not the closed event stream that follows from it."""
    with proxy.refusing("GET /containers/json"):
        proxy.cut()
        wait_until(lambda: outage(proxied) == "list containers: input/output")
    wait_until(lambda: not outage(proxied))
    log = proxied.server.daemon.log.read_text()
    assert log.count('"reason":"list containers: input/output"') == 1


@pytest.mark.usefixtures("kubelet")
def test_a_docker_that_is_slow_to_list_containers_is_reported(proxy: DockerProxy, proxied: Served) -> None:
    with proxy.hanging("GET /containers/json") as asked:
        proxy.cut()
        assert asked.wait(30)
        wait_until(lambda: "Docker did not answer within 30 s" in outage(proxied), 60)
        condition = wait_until(lambda: _condition_if_not_ready(proxied), 30)
        assert condition is not None
        assert (condition.reason, "list containers" in condition.message) == ("DockerDaemonNotReady", True)
    wait_until(lambda: not outage(proxied), 30)


def _condition_if_not_ready(served: Served) -> pb.RuntimeCondition | None:
    condition = served.cri.runtime.Status(pb.StatusRequest()).status.conditions[0]
    return None if condition.status else condition
