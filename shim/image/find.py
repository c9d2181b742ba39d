"""Finding an image for a call that needs it."""

from shim.base import deadline
from shim.domain.errors import ShimError, Unavailable
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the image of this id, unique prefix of an id, tag or digest; None when it is not on this node.

    For an image that the view does not know the list is refreshed: the event of an external change (`docker build`,
    `docker load`, `docker tag`) may be on its way. Concurrent callers, as for the pods of a new node, share a refresh.
    If the images cannot be listed, Docker is asked about this one alone: a damaged image store affects only the images
    that are damaged.
    """
    if not rt.view.images.is_listed():
        return rt.view.images.lookup(name)
    record = rt.view.images.find(name)
    if record is None:
        if not refresh_list(rt):
            return rt.view.images.lookup(name)
        record = rt.view.images.find(name)
    return record


def refresh_list(rt: Runtime) -> bool:
    """Refresh the list of images. Return False if Docker answers, but cannot list them."""
    try:
        rt.view.images.ensure_fresh()
    except Unavailable:
        raise
    except ShimError:
        deadline.current().check("list images")
        return False
    return True
