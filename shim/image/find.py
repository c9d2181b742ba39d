"""Finding an image for a call that needs it."""

from shim.domain import references
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the image of this id, unique prefix of an id, tag or digest, inspected; None when it is not on this node.

    Docker is asked about an image that the view does not know: the event of an external change (`docker build`, `docker
    load`, `docker tag`) may be on its way, or not all images have been listed. It is asked about that one alone.
    It is asked about a tag, too, while an image that has changed is still to be inspected: a build may have moved it.
    """
    known = rt.view.images.find_listed(name)
    if known is None or not known.inspected:
        return rt.view.images.lookup(name)
    is_tag = references.image_id(name) is None and "@" not in name
    return rt.view.images.lookup(name) if is_tag and rt.view.images.has_unseen_events() else known
