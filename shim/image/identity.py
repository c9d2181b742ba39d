"""The identity of an image for clients.

Docker's image id is used in PullImageResponse.image_ref, Image.id, Container.image_id and ContainerStatus.image_id. The
kubelet compares these to find the images in use, and the pulls they came from (cri-api 1.36). Only
ContainerStatus.image_ref, which users see as `imageID` of a pod, has another form.
"""

from collections.abc import Callable, Iterator

from shim.api.v1 import api_pb2 as pb
from shim.config.wildcard import expression_from_wildcard
from shim.domain import references
from shim.runtime import Runtime
from shim.view.records import ImageRecord

_MAX_UID = 2**63 - 1
"""Maximum of Image.uid, an int64."""


def image_ref_of(record: ImageRecord) -> str:
    """Return ContainerStatus.image_ref of an image: its first repo digest, or its id for a local image."""
    return record.repo_digests[0] if record.repo_digests else record.id


def image_from_record(record: ImageRecord, *, pinned: bool) -> pb.Image:
    """Return the CRI message of an image."""
    image = pb.Image(
        id=record.id,
        repo_tags=record.repo_tags,
        repo_digests=record.repo_digests,
        # Clients refuse a size of 0 (cri-client), which Docker reports for an image without layers.
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
    """Return a predicate for images that the kubelet must not collect: the pause image and `pinned_images`.

    The pause image is compared by id, so that it is protected under all its names, however the setting spells it.
    """
    # Before all images are listed, `last_known` finds images that were inspected alone.
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
    """Yield a canonical name and its repository, each in full and in Docker's short form."""
    reference = references.parse(name)
    yield from (name, reference.name, reference.familiar(), reference.familiar_name)
