"""Finds an image in the view, or in Docker if the view may be outdated."""

from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the inspected image with this id, unique id prefix, tag or digest; None if it is not on this node.

    If the view does not know the image, Docker is queried for this image: the event of an external change (`docker
    build`, `docker load`, `docker tag`) may not have arrived, or not all images are listed yet. Docker is also queried
    while the inspect of a changed image is pending: a build may have moved the tag, or somebody removed the image.
    """
    known = rt.view.images.find_listed(name)
    if known is None or not known.inspected:
        return rt.view.images.lookup(name)
    return rt.view.images.lookup(name) if rt.view.images.has_unseen_events() else known
