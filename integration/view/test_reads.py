"""The kubelet's reads of every second: without Docker calls, and equal as unary and streaming lists."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK, Cri, container_config
from integration.node.engine import Engine
from integration.pods.kubelet import Kubelet, Pod
from integration.view.proxy import DockerProxy
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.domain import labels
from shim.domain.names import container_name
from shim.engine.client import DockerEngine

MANY = {"28": 2000, "20.10": 600, "26": 600, "28-containerd": 600, "29-containerd": 600}
"""More than fit in a piece of a streamed list; before a release, twenty times the supported number of a node."""
MANY_SECONDS = 60
AT_ONCE = 8


@pytest.fixture
def direct(engine: Engine) -> Iterator[DockerEngine]:
    """Connect to Docker without the server."""
    made = DockerEngine(engine.url, request_timeout=60)
    yield made
    made.close()


def test_reads_make_no_docker_calls(kubelet: Kubelet, proxy: DockerProxy) -> None:
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)

    def asked() -> list[str]:
        before = len(proxy.requests())
        for _ in range(10):
            read_all(kubelet.cri, sandbox=pod.id, container=container, image=kubelet.image)
        return proxy.requests()[before:]

    # Right after the start events still cause inspects, and once a minute the view is compared with Docker.
    wait_until(lambda: asked() == [])


def read_all(cri: Cri, *, sandbox: str, container: str, image: str) -> None:
    """Read everything once."""
    assert cri.sandboxes()
    assert cri.containers()
    assert cri.sandbox_status(sandbox).id == sandbox
    assert cri.container_status(container).id == container
    assert cri.images.ListImages(pb.ListImagesRequest()).images
    assert cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=image))).image.id


def test_streaming_lists_of_many_containers_equal_unary_lists(
    kubelet: Kubelet, proxied: Served, direct: DockerEngine, engine_name: str
) -> None:
    pods = [kubelet.pod(linux=HOST_NETWORK) for _ in range(4)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = set(pool.map(lambda number: create(direct, pods, number, kubelet.image), range(MANY[engine_name])))
    wait_until(lambda: len(proxied.cri.containers()) == len(made), MANY_SECONDS)
    runtime = kubelet.cri.runtime

    listed = kubelet.cri.containers()
    pieces = list(runtime.StreamContainers(pb.StreamContainersRequest()))
    assert {container.id for container in listed} == made
    assert [container for piece in pieces for container in piece.containers] == listed
    assert len(pieces) > 1

    streamed = list(runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest()))
    assert [pod for piece in streamed for pod in piece.pod_sandboxes] == kubelet.cri.sandboxes()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(direct.remove_container, made))
    wait_until(lambda: kubelet.cri.containers() == [], MANY_SECONDS)


def create(engine: DockerEngine, pods: list[Pod], number: int, image: str) -> str:
    """Create a container as the server does, without the server's work."""
    pod = pods[number % len(pods)]
    config = container_config(f"c-{number}", image=image)
    name = container_name(config.metadata, pod=pod.config.metadata)
    tags = labels.container_labels(config, name=name, sandbox_id=pod.id, log_path="")
    host = {"NetworkMode": f"container:{pod.id}", **labels.ownership_fields(tags)}
    return engine.create_container(
        name=name, body={"Image": image, "Cmd": ["true"], "Labels": tags, "HostConfig": host}
    )
