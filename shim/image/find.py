"""Finds an image for a call that needs it."""

from shim.domain import references
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the inspected image with this id, unique id prefix, tag or digest; None if it is not on this node.

    Docker is queried for an image that the view does not know, and only for that image: the event of an external change
    (`docker build`, `docker load`, `docker tag`) may not have arrived, or the images are not all listed yet. Docker is
    also queried for a known tag while the inspection of a changed image is pending, because a build may have moved the
    tag.
    """
    known = rt.view.images.find_listed(name)
    if known is None or not known.inspected:
        return rt.view.images.lookup(name)
    is_tag = references.image_id(name) is None and "@" not in name
    return rt.view.images.lookup(name) if is_tag and rt.view.images.has_unseen_events() else known
