"""ListImages."""

from shim.api.v1 import api_pb2 as pb
from shim.image.identity import image_from_record, pins
from shim.runtime import Runtime


def list_images(rt: Runtime, *, filter: pb.ImageFilter) -> list[pb.Image]:  # noqa: A002 - the CRI's word
    """Return the images of the node, sorted by id, or the image that `filter` names by id or any reference."""
    wanted = filter.image.image
    if wanted:
        found = rt.view.images.find(wanted)
        records = [found] if found is not None else []
    else:
        records = sorted(rt.view.images.all(), key=lambda record: record.id)
    is_pinned = pins(rt)
    return [image_from_record(record, pinned=is_pinned(record)) for record in records]
