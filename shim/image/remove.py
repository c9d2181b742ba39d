"""RemoveImage."""

from contextlib import suppress

from shim.api.v1 import api_pb2 as pb
from shim.domain import references
from shim.domain.errors import FailedPrecondition, NotFound
from shim.domain.ids import ImageId
from shim.image.identity import image_ref_of
from shim.runtime import Runtime

_NAMED_USERS = 5
"""Maximum number of containers that an error names."""


def remove_image(rt: Runtime, *, image: pb.ImageSpec) -> None:
    """Remove an image with all its tags and digests from Docker and from the view; an unknown image is ignored.

    `image` is its id, a tag or a digest. Raise FailedPrecondition while any container uses it, in any state and of any
    creator; the image then keeps all its names.
    """
    image_id = _find_id(rt, image.image)
    if image_id is None:
        return
    # The lock is by id, because concurrent calls may use different names, and Docker answers the slower with 409.
    with rt.locks.image(image_id), rt.view.images.names_kept(image_id):
        _check_not_mounted(rt, image_id)
        try:
            with rt.view.images.removal(image_id), suppress(NotFound):
                # Docker removes the image with all its names, or fails and removes nothing.
                rt.engine.remove_image(image_id)
        except FailedPrecondition:
            _check_unused(rt, image_id)
            _remove_by_names(rt, image_id)


def _find_id(rt: Runtime, name: str) -> ImageId | None:
    """Return the id of an image. Docker resolves a name, because the name may have moved to another image.

    If another call is removing the image, Docker may have removed the name but not yet the image.
    """
    image_id = references.image_id(name)
    if image_id is not None:
        return image_id
    record = rt.view.images.lookup(name)
    return record.id if record is not None else rt.view.images.being_removed(name)


def _remove_by_names(rt: Runtime, image_id: ImageId) -> None:
    """Remove all names of an image that no container uses.

    Docker removes an image with several names by id only with force. It keeps an image from which other images were
    built; without names the image is no longer listed, and its children keep the layers they need. Docker checks each
    step, so the image stays if a container is created meanwhile.
    """
    try:
        record = rt.view.images.refresh_one(image_id)
        for name in record.names if record is not None else ():
            with suppress(NotFound):  # removing the last tag removes the repository's digests
                rt.engine.remove_image(name)
        # An image without names has to be removed by id, unless it is the parent of another image.
        with suppress(NotFound, FailedPrecondition):
            rt.engine.remove_image(image_id)
    finally:
        rt.view.images.refresh_one(image_id)


def _check_unused(rt: Runtime, image_id: ImageId) -> None:
    """Refuse while a container uses the image. Docker does not check this if it only removes one of several names."""
    users = [
        f"{container.state} container {_name_of(container.names)} ({container.id[:12]})"
        for container in rt.engine.list_containers()
        if container.image_id == image_id
    ]
    if users:
        raise _in_use(rt, image_id, "in use by", users)


def _check_not_mounted(rt: Runtime, image_id: ImageId) -> None:
    """Refuse while a container of a pod mounts the image and has not exited. Docker does not check this."""
    users = [
        f"container {container.name} ({container.id[:12]})"
        for container in rt.view.containers()
        if container.state.phase != pb.CONTAINER_EXITED
        and image_id in {mount.image.image_ref for mount in container.config.mounts if mount.image.image}
    ]
    if users:
        raise _in_use(rt, image_id, "mounted by", users)


def _in_use(rt: Runtime, image_id: ImageId, how: str, users: list[str]) -> FailedPrecondition:
    record = rt.view.images.last_known(image_id)
    more = len(users) - _NAMED_USERS
    named = ", ".join(users[:_NAMED_USERS]) + (f" and {more} more" if more > 0 else "")
    what = image_id if record is None else image_ref_of(record)
    return FailedPrecondition(f"remove image {what}: {how} {named}; remove the container first")


def _name_of(names: list[str] | None) -> str:
    return next((name.removeprefix("/") for name in names or ()), "without a name")
