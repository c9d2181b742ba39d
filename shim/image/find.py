"""Finding an image for a call that needs it."""

from shim.base import deadline
from shim.domain.errors import ShimError, Unavailable
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def find_image(rt: Runtime, name: str) -> ImageRecord | None:
    """Give the image of this id, unique beginning of an id, tag or digest; None when it is not on this node.

    What the view does not know is looked for once more: the event of what came around us (`docker build`, `docker
    load`, `docker tag`) may be on its way. Those who ask at the same time, as for the pods of a new node, share a look.
    Where the images cannot be listed, Docker is asked about this one alone, so that a sick image store costs only what
    uses what is sick.
    """
    if not rt.view.images.is_listed():
        return rt.view.images.look_up(name)
    record = rt.view.images.find(name)
    if record is None:
        if not list_anew(rt):
            return rt.view.images.look_up(name)
        record = rt.view.images.find(name)
    return record


def list_anew(rt: Runtime) -> bool:
    """Have the images listed again, after this call. False where Docker answers, but cannot list them."""
    try:
        rt.view.images.ensure_looked_at()
    except Unavailable:
        raise
    except ShimError:
        deadline.current().check("list images")
        return False
    return True
