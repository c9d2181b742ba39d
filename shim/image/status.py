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
    """Describe one image, named by id or any reference; the answer is empty when it is not here.

    Only what the view does not know costs a look at the Engine: the kubelet takes an empty answer for a reason to
    pull. `verbose` asks it for the image's configuration.
    """
    record = find_image(rt, image.image)
    if record is None:
        return pb.ImageStatusResponse()
    described = image_from_record(record, pinned=pins(rt)(record))
    try:
        info = _info(rt, record) if verbose else {}
    except NotFound:  # removed since the view was asked
        return pb.ImageStatusResponse()
    return pb.ImageStatusResponse(image=described, info=info)


def _info(rt: Runtime, record: ImageRecord) -> dict[str, str]:
    # `imageSpec` is where containerd has it, and where users of `crictl inspecti` look.
    spec = _image_spec(rt.engine.inspect_image(record.id))
    return {"info": msgspec.json.encode({"id": record.id, "imageSpec": spec}).decode()}


def _image_spec(image: ImageInspect) -> dict[str, object]:
    """Give the OCI image configuration, as far as Docker tells it: its history is another call, and nobody's need."""
    spec = {
        "created": image.created,
        "architecture": image.architecture,
        "variant": image.variant,
        "os": image.os,
        "config": _told(msgspec.to_builtins(image.config or {})),
        "rootfs": {"type": image.root_fs.type, "diff_ids": image.root_fs.layers or []},
    }
    return {**_told(spec), "config": spec["config"]}


def _told(values: Mapping[str, object]) -> dict[str, object]:
    """Drop what Docker does not tell."""
    return {key: value for key, value in values.items() if value}
