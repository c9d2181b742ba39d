"""ContainerStatus."""

from typing import Any

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.container.actual import actual_resources
from shim.image.identity import image_ref_of
from shim.runtime import Runtime
from shim.view.records import ContainerRecord

DEFAULT_STOP_SIGNAL = "SIGTERM"


def container_status(rt: Runtime, *, container_id: str, verbose: bool) -> pb.ContainerStatusResponse:
    """Describe a container as the view knows it. NotFound for an unknown id."""
    record = rt.view.container(container_id)
    info = {"info": msgspec.json.encode(_verbose(record)).decode()} if verbose else {}
    return pb.ContainerStatusResponse(status=status_message(rt, record), info=info)


def status_message(rt: Runtime, record: ContainerRecord) -> pb.ContainerStatus:
    """Build the status of one container, also for PodSandboxStatus and events."""
    life = record.life
    return pb.ContainerStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=life.state,
        created_at=life.created_at,
        started_at=life.started_at,
        finished_at=life.finished_at,
        exit_code=life.exit_code,
        reason=life.reason,
        message=life.message,
        image=record.image_spec,
        image_ref=_image_ref(rt, record),
        image_id=record.image_id,
        labels=record.config.labels,
        annotations=record.config.annotations,
        mounts=record.config.mounts,
        log_path=record.log_path,
        resources=pb.ContainerResources(linux=actual_resources(rt, record)),
        stop_signal=stop_signal_number(record.stop_signal),
    )


def stop_signal_number(docker: str) -> pb.Signal:
    """The CRI's signal for Docker's name; RUNTIME_DEFAULT for one the CRI has no name for."""
    name = (docker or DEFAULT_STOP_SIGNAL).replace("+", "PLUS").replace("-", "MINUS")
    return getattr(pb, name) if name in pb.Signal.keys() else pb.RUNTIME_DEFAULT  # noqa: SIM118 - no dict


def _image_ref(rt: Runtime, record: ContainerRecord) -> str:
    image = rt.view.image(record.image_id)
    return record.image_id if image is None else image_ref_of(image)


def _verbose(record: ContainerRecord) -> dict[str, Any]:
    return {"sandboxID": record.sandbox_id, "pid": record.life.pid, "dockerName": record.name}
