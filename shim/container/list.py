"""ListContainers."""

from shim.api.v1 import api_pb2 as pb
from shim.container.status import image_spec
from shim.runtime import Runtime
from shim.view.records import ContainerRecord


def list_containers(rt: Runtime, *, filter: pb.ContainerFilter) -> list[pb.Container]:  # noqa: A002 - the CRI's word
    """List containers that fit every part of the filter; ids in it may be unique prefixes."""
    return [_container(record) for record in rt.view.containers() if _fits(record, filter)]


def _fits(record: ContainerRecord, wanted: pb.ContainerFilter) -> bool:
    return (
        record.id.startswith(wanted.id)
        and record.sandbox_id.startswith(wanted.pod_sandbox_id)
        and (not wanted.HasField("state") or record.life.state == wanted.state.state)
        and wanted.label_selector.items() <= record.config.labels.items()
    )


def _container(record: ContainerRecord) -> pb.Container:
    return pb.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox_id,
        metadata=record.config.metadata,
        image=image_spec(record),
        image_ref=record.image_id,
        image_id=record.image_id,
        state=record.life.state,
        created_at=record.life.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
    )
