"""Finding an image for a call that needs it."""

from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Give the image of this id, unique beginning of an id, tag or digest; None when it is not on this node.

    What the view does not know is looked for once more: the event of what came around us (`docker build`, `docker
    load`, `docker tag`) may be on its way. Those who ask at the same time, as for the pods of a new node, share a look.
    """
    record = rt.view.images.find(name)
    if record is None:
        rt.view.images.ensure_looked_at()
        record = rt.view.images.find(name)
    return record
