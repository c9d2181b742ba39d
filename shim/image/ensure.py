"""Images the shim itself needs."""

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from shim.domain.ids import ImageId
from shim.engine.errors import RegistryDenied, RegistryErrorUnknown, RegistryUnavailable
from shim.image.find import find_image
from shim.image.pull import pull_image
from shim.runtime import Runtime


def ensure_image(rt: Runtime, *, reference: str) -> ImageId:
    """Return the id of the pause image `reference`, pulled when it is not on this node.

    FailedPrecondition names the image and the ways to provide it.
    """
    present = find_image(rt, reference)
    if present is not None:
        return present.id
    try:
        return pull_image(rt, image=pb.ImageSpec(image=reference), auth=None)
    except (RegistryUnavailable, RegistryDenied, RegistryErrorUnknown, NotFound, InvalidArgument) as failure:
        raise FailedPrecondition(
            f"pause image {reference} is not on this node and cannot be pulled; load it (docker pull, docker load) "
            f"or set pod_infra_container_image to one that can be pulled: {failure}"
        ) from failure
