"""Frequent reads make no call to Docker, and lists equal their streams."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.chunks import CHUNK
from shim.cri.image_service import ImageService
from shim.cri.runtime_service import RuntimeService
from shim.domain.ids import SandboxId
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running
from tests.view.samples import create_container, create_sandbox
from tests.waits import wait_until

MANY = 2000
READS = (
    *("ListPodSandbox", "ListContainers", "PodSandboxStatus", "ContainerStatus", "ListImages", "ImageStatus"),
    *("StreamPodSandboxes", "StreamContainers", "StreamImages"),
)


class Reads:
    """The two services, called directly without gRPC."""

    def __init__(self, rt: Runtime) -> None:
        self.context: Any = None  # reads do not use the context
        self.runtime = RuntimeService(rt)
        self.images = ImageService(rt)

    def each(self, *, sandbox: str, container: str) -> dict[str, Callable[[], object]]:
        runtime, images, context = self.runtime, self.images, self.context
        of_sandbox = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox, verbose=True)
        of_container = pb.ContainerStatusRequest(container_id=container, verbose=True)
        of_image = pb.ImageStatusRequest(image=pb.ImageSpec(image=BUSYBOX))
        return {
            "ListPodSandbox": lambda: runtime.ListPodSandbox(pb.ListPodSandboxRequest(), context).items,
            "ListContainers": lambda: runtime.ListContainers(pb.ListContainersRequest(), context).containers,
            "PodSandboxStatus": lambda: runtime.PodSandboxStatus(of_sandbox, context).status.id,
            "ContainerStatus": lambda: runtime.ContainerStatus(of_container, context).status.id,
            "ListImages": lambda: images.ListImages(pb.ListImagesRequest(), context).images,
            "ImageStatus": lambda: images.ImageStatus(of_image, context).image.id,
            "StreamPodSandboxes": lambda: list(runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest(), context)),
            "StreamContainers": lambda: list(runtime.StreamContainers(pb.StreamContainersRequest(), context)),
            "StreamImages": lambda: list(images.StreamImages(pb.StreamImagesRequest(), context)),
        }


@pytest.fixture
def reads(rt: Runtime) -> Reads:
    return Reads(rt)


@pytest.mark.parametrize("rpc", READS)
def test_reads_make_no_docker_call(rt: Runtime, engine: FakeEngine, reads: Reads, rpc: str) -> None:
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    # Events of previous changes may still cause a refresh.
    wait_until(lambda: _is_quiet(engine))
    with engine.held("list_images"), engine.held("list_containers"), engine.held("inspect_container"):
        before = len(engine.calls)
        for _ in range(3):
            assert reads.each(sandbox=sandbox, container=container)[rpc]()
        assert engine.calls[before:] == []


def _is_quiet(engine: FakeEngine) -> bool:
    """Return whether Docker has received no calls for a moment."""
    before = len(engine.calls)
    threading.Event().wait(0.1)
    return len(engine.calls) == before


def test_reads_see_a_change_immediately(rt: Runtime, reads: Reads) -> None:
    """The next read shows the effect of an RPC before Docker's event arrives."""
    sandbox = ready_pod(rt)
    listed = reads.runtime.ListPodSandbox(pb.ListPodSandboxRequest(), reads.context).items
    assert [(one.id, one.state) for one in listed] == [(sandbox, pb.SANDBOX_READY)]
    container = created(rt, sandbox)
    (one,) = reads.runtime.ListContainers(pb.ListContainersRequest(), reads.context).containers
    assert (one.id, one.state) == (container, pb.CONTAINER_CREATED)


def test_two_thousand_containers_fit_a_list_and_a_stream(rt: Runtime, engine: FakeEngine, reads: Reads) -> None:
    sandboxes: list[SandboxId] = []
    for number in range(MANY // 4):
        sandboxes.append(create_sandbox(engine, attempt=number))
        for name in ("a", "b", "c", "d"):
            create_container(engine, sandboxes[-1], name=f"{name}{number}")
    rt.view.refresh_container(sandboxes[-1])
    wait_until(lambda: len(rt.view.containers()) == MANY and len(rt.view.sandboxes()) == len(sandboxes))

    whole = reads.runtime.ListContainers(pb.ListContainersRequest(), reads.context).containers
    parts = list(reads.runtime.StreamContainers(pb.StreamContainersRequest(), reads.context))
    assert [one for part in parts for one in part.containers] == list(whole)
    assert len(parts) == MANY // CHUNK
    assert len({one.id for one in whole}) == MANY

    pods = reads.runtime.ListPodSandbox(pb.ListPodSandboxRequest(), reads.context).items
    streamed = list(reads.runtime.StreamPodSandboxes(pb.StreamPodSandboxesRequest(), reads.context))
    assert [one for part in streamed for one in part.pod_sandboxes] == list(pods)
    assert {one.id for one in pods} == set(sandboxes)
