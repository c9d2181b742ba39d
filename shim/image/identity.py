"""How an image is named to clients.

One identity everywhere: Docker's image id is PullImageResponse.image_ref, Image.id, Container.image_id and
ContainerStatus.image_id. The kubelet compares these to know which images are in use and which pull brought them
(cri-api 1.36); the only other spelling is ContainerStatus.image_ref, shown to people as `imageID` of a pod.
"""

from collections.abc import Callable, Iterator

from shim.api.v1 import api_pb2 as pb
from shim.config.wildcard import expression_from_wildcard
from shim.domain import references
from shim.runtime import Runtime
from shim.view.records import ImageRecord

_MAX_UID = 2**63 - 1
"""Image.uid is an int64."""


def image_ref_of(record: ImageRecord) -> str:
    """Return the image as ContainerStatus.image_ref names it: its first repo digest, for a local image its id."""
    return record.repo_digests[0] if record.repo_digests else record.id


def image_from_record(record: ImageRecord, *, pinned: bool) -> pb.Image:
    """Return the CRI message of an image."""
    image = pb.Image(
        id=record.id,
        repo_tags=record.repo_tags,
        repo_digests=record.repo_digests,
        # Clients refuse an image of size 0 (cri-client), and one without layers has that size in Docker.
        size=max(record.size, 1),
        pinned=pinned,
    )
    user = record.user.partition(":")[0]
    if user.isascii() and user.isdigit() and int(user) <= _MAX_UID:
        image.uid.value = int(user)
    else:
        image.username = user
    return image


def pins(rt: Runtime) -> Callable[[ImageRecord], bool]:
    """Return a predicate for images the kubelet must not collect: the pause image and `pinned_images`, by any name.

    The pause image is found by id, so that every spelling of the setting (tag, digest, both, familiar) protects every
    name.
    """
    # Also where not all images are known: an image that was looked up alone is the last known one of its names.
    pause = rt.view.images.last_known(rt.config.pod_infra_container_image)
    patterns = [expression_from_wildcard(text) for text in rt.config.pinned_images]

    def is_pinned(record: ImageRecord) -> bool:
        if pause is not None and record.id == pause.id:
            return True
        return bool(patterns) and any(
            pattern.fullmatch(spelling)
            for name in (*record.repo_tags, *record.repo_digests)
            for spelling in _spellings(name)
            for pattern in patterns
        )

    return is_pinned


def _spellings(name: str) -> Iterator[str]:
    """Yield a canonical name and its repository, both in full and as Docker shows them."""
    reference = references.parse(name)
    yield from (name, reference.name, reference.familiar(), reference.familiar_name)
