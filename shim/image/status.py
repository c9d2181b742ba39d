"""ImageStatus."""

from collections.abc import Mapping

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import NotFound
from shim.engine.answers import ImageInspect
from shim.image.find import find_image
from shim.image.identity import image_from_record, pins
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def image_status(rt: Runtime, *, image: pb.ImageSpec, verbose: bool) -> pb.ImageStatusResponse:
    """Return an image, named by id or any reference; the response is empty if it is not on the node.

    If the view does not know the image, Docker is queried, because the kubelet pulls after an empty response. With
    `verbose`, Docker is also queried for the image's configuration.
    """
    record = find_image(rt, image.image)
    if record is None:
        return pb.ImageStatusResponse()
    described = image_from_record(record, pinned=pins(rt)(record))
    try:
        info = _info(rt, record) if verbose else {}
    except NotFound:  # removed since the lookup
        return pb.ImageStatusResponse()
    return pb.ImageStatusResponse(image=described, info=info)


def _info(rt: Runtime, record: ImageRecord) -> dict[str, str]:
    # As in containerd, users of `crictl inspecti` expect `imageSpec`.
    spec = _image_spec(rt.engine.inspect_image(record.id))
    return {"info": msgspec.json.encode({"id": record.id, "imageSpec": spec}).decode()}


def _image_spec(image: ImageInspect) -> dict[str, object]:
    """Return the OCI image configuration as far as an inspect reports it, without the history."""
    spec = {
        "created": image.created,
        "architecture": image.architecture,
        "variant": image.variant,
        "os": image.os,
        "config": _without_empty(msgspec.to_builtins(image.config or {})),
        "rootfs": {"type": image.root_fs.type, "diff_ids": image.root_fs.layers or []},
    }
    return {**_without_empty(spec), "config": spec["config"]}


def _without_empty(values: Mapping[str, object]) -> dict[str, object]:
    """Drop the fields that Docker does not report."""
    return {key: value for key, value in values.items() if value}
