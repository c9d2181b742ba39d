"""Ensures that the pause image is present."""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from shim.engine.errors import RegistryDenied, RegistryErrorUnknown, RegistryUnavailable
from shim.image.find import find_image
from shim.image.pull import pull_image
from shim.runtime import Runtime
from shim.view.records import ImageRecord


def ensure_image(rt: Runtime, *, reference: str) -> ImageRecord:
    """Return the pause image `reference`; pull it if it is not on this node.

    Raise FailedPrecondition with the image's name and the ways to provide it.
    """
    present = find_image(rt, reference)
    if present is not None:
        return present
    try:
        pulled = pull_image(rt, image=pb.ImageSpec(image=reference), auth=None)
    except (RegistryUnavailable, RegistryDenied, RegistryErrorUnknown, NotFound, InvalidArgument) as failure:
        raise FailedPrecondition(
            f"pause image {reference} is not on this node and cannot be pulled; load it (docker pull, docker load) "
            f"or set pod_infra_container_image to one that can be pulled: {failure}"
        ) from failure
    found = find_image(rt, pulled)
    if found is None:
        raise FailedPrecondition(f"pause image {reference} was removed as soon as it was pulled")
    return found
