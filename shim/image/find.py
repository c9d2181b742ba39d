"""Finds an image in the view, or in Docker if the view may be outdated."""

from shim.domain import references
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the inspected image with this id, unique id prefix, tag or digest; None if it is not on this node.

    If the view does not know the image, Docker is queried for this image: the event of an external change (`docker
    build`, `docker load`, `docker tag`) may not have arrived, or not all images are listed yet. Docker is also queried
    for a tag while the inspect of any changed image is pending, because a build may have moved the tag, and for an id
    or digest while the inspect of this image is pending, because somebody may have removed it.
    """
    known = rt.view.images.find_listed(name)
    if known is None or not known.inspected:
        return rt.view.images.lookup(name)
    is_tag = references.image_id(name) is None and "@" not in name
    outdated = rt.view.images.has_unseen_events(None if is_tag else known.id)
    return rt.view.images.lookup(name) if outdated else known
