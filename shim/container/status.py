"""ContainerStatus."""

from collections.abc import Iterable
from typing import Any

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.container.limits_in_force import limits_in_force
from shim.container.verbose import common_info
from shim.domain import references
from shim.domain.errors import NotFound
from shim.image.identity import image_ref_of
from shim.pod import exec_root_of
from shim.runtime import Runtime
from shim.spec.signals import cri_signal
from shim.spec.users import container_user
from shim.view.image_index import name_for_people
from shim.view.records import ContainerRecord


def container_status(rt: Runtime, *, container_id: str, verbose: bool) -> pb.ContainerStatusResponse:
    """Return the status of a container from the view. Raise NotFound for an unknown id."""
    record = rt.view.container(container_id)
    if rt.unseen.is_hidden(record):
        raise NotFound(f"no container has the id {record.id}")
    info = {"info": msgspec.json.encode(_verbose(rt, record)).decode()} if verbose else {}
    return pb.ContainerStatusResponse(status=status_message(rt, record), info=info)


def status_message(rt: Runtime, record: ContainerRecord) -> pb.ContainerStatus:
    """Build the status of a container."""
    state = record.state
    return pb.ContainerStatus(
        id=record.id,
        metadata=record.config.metadata,
        state=state.phase,
        created_at=state.created_at,
        started_at=state.started_at,
        finished_at=state.finished_at,
        exit_code=state.exit_code,
        reason=state.reason,
        message=state.message,
        image=_image_spec(rt, record),
        image_ref=_image_ref(rt, record),
        image_id=record.image_id,
        labels=record.config.labels,
        annotations=record.config.annotations,
        mounts=record.config.mounts,
        log_path=record.log_path,
        resources=pb.ContainerResources(linux=limits_in_force(rt, record)),
        stop_signal=cri_signal(record.stop_signal),
        user=container_user(record.user, record.host.group_add),
    )


def pod_status_messages(rt: Runtime, records: Iterable[ContainerRecord]) -> list[pb.ContainerStatus]:
    """Build the statuses of a pod's containers, newest first.

    A kubelet with EventedPLEG uses the first container of each name in PodSandboxStatus. If an exited attempt came
    first, the kubelet would miss the running container and create it again.
    """
    newest_first = sorted(
        records, key=lambda record: (record.state.created_at, record.config.metadata.attempt), reverse=True
    )
    return [status_message(rt, record) for record in newest_first]


def _image_spec(rt: Runtime, record: ContainerRecord) -> pb.ImageSpec:
    """Return the image as named by the client. For an id, which the kubelet sends, return a name for people."""
    image = rt.view.images.last_known(record.image_id)
    if image is None or references.image_id(record.image_spec.image) != image.id:
        return record.image_spec
    named = pb.ImageSpec()
    named.CopyFrom(record.image_spec)
    named.image = name_for_people(image, wanted=named.user_specified_image)
    return named


def _image_ref(rt: Runtime, record: ContainerRecord) -> str:
    image = rt.view.images.last_known(record.image_id)
    return record.image_id if image is None else image_ref_of(image)


def _verbose(rt: Runtime, record: ContainerRecord) -> dict[str, Any]:
    exec_root = exec_root_of(rt, record.sandbox_id)
    return {
        "sandboxID": record.sandbox_id,
        **common_info(rt, record, image=_image_spec(rt, record).image, exec_root=exec_root),
    }
