"""RemoveImage."""

from shim.api.v1 import api_pb2 as pb
from shim.domain import references
from shim.domain.errors import FailedPrecondition, NotFound, ShimError
from shim.engine.answers import ContainerSummary
from shim.image.find import find_image, refresh_list
from shim.image.identity import image_ref_of
from shim.runtime import Runtime
from shim.view.records import ContainerRecord, ImageRecord

_HAS_CHILDREN = "dependent child images"
"""In Docker's error for an image other local images were built from."""
_ENDED = frozenset({"exited", "dead", "removing"})
"""States of Docker's containers that no longer need their image."""


def remove_image(rt: Runtime, *, image: pb.ImageSpec) -> None:
    """Remove an image with all its tags and digests, named by id or any of them; an unknown one is fine.

    Raise FailedPrecondition while a container that has not ended uses it. The view has dropped it when this returns.
    """
    record = find_image(rt, image.image)
    while record is not None:
        # By id: the references of one image may be removed side by side, and Docker answers the slower one with 409.
        with rt.locks.image(record.id):
            current = _find_current(rt, image.image)
            if current is not None and current.id == record.id:
                _remove(rt, current)
                return
        record = current


def _find_current(rt: Runtime, name: str) -> ImageRecord | None:
    """Return the image to remove. A name is looked up again: it may have moved to another image."""
    if references.image_id(name) is None and not refresh_list(rt):
        return rt.view.images.lookup(name)
    return find_image(rt, name)


def _remove(rt: Runtime, record: ImageRecord) -> None:
    _check_unused(rt, record)
    try:
        # By id and by force, Docker checks for running containers first and removes all references in one step; going
        # from tag to tag would leave a nameless image behind when the last step fails.
        rt.engine.remove_image(record.id)
    except NotFound:
        pass
    except FailedPrecondition as refusal:
        if _HAS_CHILDREN not in str(refusal):
            raise
        _check_unused_in_docker(rt, record)
        _untag(rt, record)
    _drop_from_view(rt, record)


def _untag(rt: Runtime, record: ImageRecord) -> None:
    """Remove all names: Docker no longer lists it then, and its children keep the layers they need."""
    for reference in (*record.repo_tags, *record.repo_digests):
        try:
            rt.engine.remove_image(reference)
        except NotFound:  # the removal of the last tag removes the digests of its repository, too
            continue


def _drop_from_view(rt: Runtime, record: ImageRecord) -> None:
    """Update the view, also if the images cannot be listed."""
    try:
        rt.view.images.refresh()
    except ShimError:
        rt.view.images.forget(record.id)


def _check_unused_in_docker(rt: Runtime, record: ImageRecord) -> None:
    """Refuse while any container uses it: Docker does not check that when a single name is removed."""
    users = [
        container
        for container in rt.engine.list_containers()
        if container.image_id == record.id and container.state not in _ENDED
    ]
    if users:
        names = ", ".join(_describe(_name_of(container), container.id) for container in users)
        raise _in_use(record, names)


def _check_unused(rt: Runtime, record: ImageRecord) -> None:
    """Refuse before anything is untagged. Docker's own check ignores created containers when forced."""
    users = [
        container
        for container in rt.view.containers()
        if record.id in _images_of(container) and container.state.phase != pb.CONTAINER_EXITED
    ]
    if users:
        names = ", ".join(_describe(container.config.metadata.name, container.id) for container in users)
        raise _in_use(record, names)


def _images_of(container: ContainerRecord) -> set[str]:
    """Return the ids of the image it runs and of those it mounts, which Docker's check ignores."""
    return {container.image_id, *(mount.image.image_ref for mount in container.config.mounts if mount.image.image)}


def _in_use(record: ImageRecord, users: str) -> FailedPrecondition:
    return FailedPrecondition(f"remove image {image_ref_of(record)}: in use by {users}")


def _name_of(container: ContainerSummary) -> str:
    return next((name.removeprefix("/") for name in container.names or ()), "without a name")


def _describe(name: str, container_id: str) -> str:
    return f"container {name} ({container_id[:12]})"
