"""ImageStatus."""

import msgspec

from shim.api.v1 import api_pb2 as pb
from shim.errors import InvalidArgument, NotFound
from shim.image.identity import image_from_record, pinned_ids
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def image_status(rt: Runtime, *, image: pb.ImageSpec, verbose: bool) -> pb.ImageStatusResponse:
    """Describe one image, named by id or any reference; the answer is empty when it is not here.

    `verbose` asks the Engine for the image's configuration.
    """
    if not image.image:
        raise InvalidArgument("image.image is empty")
    record = rt.view.image(image.image)
    if record is None:
        return pb.ImageStatusResponse()
    described = image_from_record(record, pinned=record.id in pinned_ids(rt))
    try:
        info = _info(rt, record) if verbose else {}
    except NotFound:  # removed since the view was asked
        return pb.ImageStatusResponse()
    return pb.ImageStatusResponse(image=described, info=info)


def _info(rt: Runtime, record: ImageRecord) -> dict[str, str]:
    # `imageSpec.config` is where containerd has it, and where users of `crictl inspecti` look.
    config = rt.engine.inspect_image(record.id).config
    return {"info": msgspec.json.encode({"id": record.id, "imageSpec": {"config": config}}).decode()}
