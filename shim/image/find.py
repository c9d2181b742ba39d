"""Finding an image for a call that needs it."""

from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the image of this id, unique prefix of an id, tag or digest, inspected; None when it is not on this node.

    Docker is asked about an image that the view does not know: the event of an external change (`docker build`, `docker
    load`, `docker tag`) may be on its way, or not all images have been listed. It is asked about that one alone.
    """
    known = rt.view.images.find_listed(name)
    return known if known is not None and known.inspected else rt.view.images.lookup(name)
