"""Records and answers of the Engine for tests of the view."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.domain import labels
from shim.domain.ids import ContainerId, ImageId, SandboxId
from shim.domain.names import container_name, sandbox_name
from shim.engine.answers import ContainerInspect, ContainerSummary, HostSettings, ImageInspect, ImageSummary
from shim.view.in_flight_reads import Moment
from shim.view.records import ContainerRecord, ContainerState, SandboxRecord
from tests.fakes.engine import FakeEngine

ENGINES = ("20.10", "28")
POD = pb.PodSandboxMetadata(name="web-0", namespace="shop", uid="6a1c9b58", attempt=1)

_DATA = Path(__file__).parent / "data"


class Recording:
    """The recorded answers of a real Engine about a set of containers and images."""

    def __init__(self, engine: str) -> None:
        self._answers = msgspec.json.decode((_DATA / f"engine-{engine}.json").read_bytes())

    def inspect(self, what: str) -> ContainerInspect:
        return msgspec.convert(without_nulls(self._answers["Inspects"][what]), ContainerInspect)

    def listed(self, what: str) -> ContainerSummary:
        return msgspec.convert(without_nulls(self._answers["List"][what]), ContainerSummary)

    def images(self) -> list[ImageSummary]:
        return msgspec.convert(without_nulls(self._answers["Images"]), list[ImageSummary])

    def image_inspect(self, image_id: str) -> ImageInspect:
        return msgspec.convert(without_nulls(self._answers["ImageInspects"][image_id]), ImageInspect)


def unset_clock() -> Moment:
    """Return the time of a clock that never seems to have been set, however long a thread is delayed."""
    return Moment(time.time_ns(), 0)


def without_nulls(value: Any) -> Any:
    """Leave out null values, as the Engine's client does."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def container_state(
    phase: pb.ContainerState, *, started: int = 0, finished: int = 0, reason: str = "", from_list_only: bool = False
) -> ContainerState:
    return ContainerState(
        phase=phase,
        pid=77 if phase == pb.CONTAINER_RUNNING else 0,
        exit_code=0,
        reason=reason,
        message="",
        created_at=1,
        started_at=started,
        finished_at=finished,
        from_list_only=from_list_only,
    )


def container(container_id: str = "c1", *, sandbox: str = "s1", state: ContainerState | None = None) -> ContainerRecord:
    return ContainerRecord(
        id=ContainerId(container_id),
        name=f"k8s_{container_id}",
        sandbox_id=SandboxId(sandbox),
        config=pb.ContainerConfig(metadata=pb.ContainerMetadata(name=container_id)),
        image_id=ImageId("sha256:0"),
        log_path="",
        stop_signal="",
        host=HostSettings(),
        state=state or container_state(pb.CONTAINER_CREATED),
    )


def sandbox(sandbox_id: str = "s1", *, uid: str = POD.uid) -> SandboxRecord:
    metadata = pb.PodSandboxMetadata(name=POD.name, namespace=POD.namespace, uid=uid, attempt=POD.attempt)
    return SandboxRecord(
        id=SandboxId(sandbox_id),
        name=f"k8s_POD_{sandbox_id}",
        config=pb.PodSandboxConfig(metadata=metadata),
        runtime_handler="",
        state=container_state(pb.CONTAINER_RUNNING, started=2),
    )


def running(record: ContainerRecord, *, started: int = 2) -> ContainerRecord:
    return replace(record, state=container_state(pb.CONTAINER_RUNNING, started=started))


def create_sandbox(engine: FakeEngine, *, attempt: int = 0, start: bool = True) -> SandboxId:
    """Make a pause container, as RunPodSandbox does."""
    metadata = pb.PodSandboxMetadata(name="web", namespace="shop", uid="u", attempt=attempt)
    config = pb.PodSandboxConfig(metadata=metadata, labels={"app": "web"})
    return SandboxId(_create(engine, sandbox_name(metadata), labels.sandbox_labels(config, runtime_handler=""), start))


def create_container(engine: FakeEngine, sandbox_id: str, *, name: str = "app", start: bool = False) -> ContainerId:
    """Make an application container, as CreateContainer does."""
    metadata = pb.ContainerMetadata(name=name)
    config = pb.ContainerConfig(metadata=metadata, image=pb.ImageSpec(image="busybox"))
    docker_name = container_name(metadata, pod=POD)
    log_path = f"/var/log/pods/{name}.log"
    tags = labels.container_labels(config, name=docker_name, sandbox_id=sandbox_id, log_path=log_path)
    return ContainerId(_create(engine, docker_name, tags, start, network=f"container:{sandbox_id}"))


def inspects(engine: FakeEngine) -> int:
    """Return how often a container was inspected."""
    return len(engine.calls_of("inspect_container"))


def create_stranger(engine: FakeEngine, *, name: str = "database") -> str:
    """Make a container that belongs to no pod."""
    return _create(engine, name, {}, start=True)


def _create(engine: FakeEngine, name: str, tags: Mapping[str, str], start: bool, *, network: str = "none") -> str:
    if not any(image.is_called("busybox") for image in engine.images):
        engine.add_image("busybox")
    proof = labels.ownership_fields(tags) if tags else {}
    body = {"Image": "busybox", "Labels": dict(tags), "HostConfig": {"NetworkMode": network, **proof}}
    created = engine.create_container(name=name, body=body)
    if start:
        engine.start_container(created)
    return created
