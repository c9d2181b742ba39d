"""What the kubelet reads every second: without Docker, and the same in one piece and in many."""

from concurrent.futures import ThreadPoolExecutor

from integration.cri import HOST_NETWORK, Cri
from integration.pods.kubelet import Kubelet
from integration.view.proxy import DockerProxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

MANY = 600
"""More than one piece of a streamed list has."""


def test_reads_ask_docker_nothing(kubelet: Kubelet, proxy: DockerProxy) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)

    def asked() -> list[str]:
        before = len(proxy.requests())
        for _ in range(10):
            read_all(kubelet.cri, sandbox=pod.id, container=container, image=kubelet.image)
        return proxy.requests()[before:]

    # Right after the start events are still looked into, and once a minute there is the compare.
    wait_until(lambda: asked() == [])


def read_all(cri: Cri, *, sandbox: str, container: str, image: str) -> None:
    """Read everything once."""
    assert cri.sandboxes()
    assert cri.containers()
    assert cri.sandbox_status(sandbox).id == sandbox
    assert cri.container_status(container).id == container
    assert cri.images.ListImages(pb.ListImagesRequest()).images
    assert cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=image))).image.id


def test_many_containers_in_one_piece_and_in_many(kubelet: Kubelet) -> None:
    pods = [kubelet.pod(linux=HOST_NETWORK) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda number: kubelet.created(pods[number % len(pods)]), range(MANY)))
    runtime = kubelet.cri.runtime

    listed = kubelet.cri.containers()
    pieces = list(runtime.StreamContainers(pb.StreamContainersRequest()))
    assert {container.id for container in listed} == made
    assert [container for piece in pieces for container in piece.containers] == listed
    assert len(pieces) > 1

    streamed = list(runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest()))
    assert [pod for piece in streamed for pod in piece.pod_sandboxes] == kubelet.cri.sandboxes()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(kubelet.cri.remove_container, made))
    assert kubelet.cri.containers() == []
