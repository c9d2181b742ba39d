"""Images that are mounted as volumes. Docker mounts them itself, read-only and with either image store (API 1.48).

Docker resolves a sub-path only at the start, would mount a file as well, and follows links of the image on the host.
The CRI wants a missing sub-path or a file refused at create, so the server inspects the image.
"""

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument, NotFound
from shim.domain.ids import ImageId
from shim.engine.answers import PathKind
from shim.engine.interface import JsonObject
from shim.engine.versions import require_api
from shim.image.find import find_image
from shim.image.rootfs import ImageFiles, inspect_rootfs
from shim.runtime import Runtime

IMAGE_MOUNT_API = (1, 48)
"""First Engine API with mounts of the type `image`."""

MAX_OF_ONE_IMAGE = 32
"""Mounts of the same image in a container: each needs a different number of digits (`docker_image_mounts`)."""

_LEAST_DIGITS = 12
"""Digits of an id that Docker shows; fewer might match two images."""

_ALL_DIGITS = 64
_NAME = (255 - 2 * (64 + len(",src=,dst="))) // 2
"""Characters for digits and path in the file name that Docker 29 gives a mount, which hex-encodes each of them."""

LONGEST_PATH = _NAME - _LEAST_DIGITS
"""Bytes of a container path for an image mount with Docker 29."""

FAILED = "ImageVolumeMountFailed"
"""The prefix of error messages that the kubelet looks for."""


def is_image_volume(mount: pb.Mount) -> bool:
    """Return whether the mount is of an image, not of a host path."""
    return bool(mount.image.image)


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """A mount of an image that is on this node."""

    image_id: ImageId
    sub_path: str
    """A directory relative to the image's root, with links resolved; "" for the whole image."""
    path: str
    """Path of the mount in the container."""


def image_volumes(rt: Runtime, mounts: Sequence[pb.Mount]) -> dict[int, ImageVolume]:
    """Find the images among a container's mounts; return them by the index of the mount.

    Raise NotFound for a missing image, FailedPrecondition if a sub-path is not a directory of the image, Unsupported if
    Docker cannot mount images. All messages begin with FAILED.
    """
    wanted = {index: mount for index, mount in enumerate(mounts) if is_image_volume(mount)}
    for index in wanted:
        _check_supported(rt, field=f"config.mounts[{index}].image")
    ids = {
        index: _image_id(rt, mount.image, field=f"config.mounts[{index}].image.image")
        for index, mount in wanted.items()
    }
    _check_counts(ids.values())
    directories = _directories(rt, wanted, ids)
    return {
        index: ImageVolume(image_id, directories.get(index, ""), path=mounts[index].container_path)
        for index, image_id in ids.items()
    }


def with_image_refs(config: pb.ContainerConfig, volumes: Mapping[int, ImageVolume]) -> pb.ContainerConfig:
    """Return the configuration that the status reports, with the id of every mounted image in its `image_ref`."""
    copy = pb.ContainerConfig()
    copy.CopyFrom(config)
    for index, volume in volumes.items():
        copy.mounts[index].image.image_ref = volume.image_id
    return copy


def docker_image_mounts(volumes: Mapping[int, ImageVolume]) -> dict[int, JsonObject]:
    """Build Docker's mounts of image volumes, without `Target`.

    Docker accepts any prefix of an image id as `Source`. Docker 28 names a mount by container and `Source`, and fails
    if two mounts have the same name, so each mount of an image uses another number of digits. Docker 29 names it by
    container, `Source` and path, hex-encoded as a file name, which limits the digits.
    """
    used: set[tuple[ImageId, int]] = set()
    docker = {}
    for index, volume in volumes.items():
        digits = next(n for n in _numbers_of_digits(volume.path) if (volume.image_id, n) not in used)
        used.add((volume.image_id, digits))
        source = volume.image_id.removeprefix("sha256:")[:digits]
        docker[index] = {"Type": "image", "Source": source, "ReadOnly": True}
        if volume.sub_path:
            docker[index]["ImageOptions"] = {"Subpath": volume.sub_path}
    return docker


def _numbers_of_digits(path: str) -> Iterator[int]:
    """Yield possible numbers of digits for an image at this path: first those that fit Docker 29, then larger ones."""
    most = max(_LEAST_DIGITS, min(_ALL_DIGITS, _NAME - len(path.encode())))
    yield from range(most, _LEAST_DIGITS - 1, -1)
    yield from range(most + 1, _ALL_DIGITS + 1)


def _check_supported(rt: Runtime, *, field: str) -> None:
    require_api(rt.engine.api_version, needs=IMAGE_MOUNT_API, what=f"{FAILED}: {field}")


def _image_id(rt: Runtime, image: pb.ImageSpec, *, field: str) -> ImageId:
    try:
        record = find_image(rt, image.image)
    except InvalidArgument as error:
        raise InvalidArgument(f"{FAILED}: {field}: {error}") from error
    if record is None:
        raise NotFound(f"{FAILED}: {field}: {image.image!r} is not on this node; pull it first")
    return record.id


def _check_counts(image_ids: Iterable[ImageId]) -> None:
    for image_id, count in Counter(image_ids).items():
        if count > MAX_OF_ONE_IMAGE:
            raise InvalidArgument(
                f"{FAILED}: config.mounts has {count} mounts of image {image_id}, at most {MAX_OF_ONE_IMAGE}"
                " are allowed"
            )


def _directories(rt: Runtime, mounts: Mapping[int, pb.Mount], ids: Mapping[int, ImageId]) -> dict[int, str]:
    """Resolve the sub-paths, with a single inspection of each image."""
    found = {}
    for image_id in dict.fromkeys(ids.values()):
        given = {
            index: _sub_path(mount) for index, mount in mounts.items() if ids[index] == image_id and _sub_path(mount)
        }
        if given:
            seen = inspect_rootfs(rt, image_id=image_id, read=partial(_resolve, given.values()))
            for (index, sub_path), resolved in zip(given.items(), seen, strict=True):
                field = f"config.mounts[{index}].image_sub_path: image {mounts[index].image.image!r}"
                found[index] = _directory(sub_path, resolved, field=field)
    return found


def _resolve(sub_paths: Iterable[str], files: ImageFiles) -> list[tuple[str, PathKind] | None]:
    return [files.resolve(sub_path) for sub_path in sub_paths]


def _directory(sub_path: str, resolved: tuple[str, PathKind] | None, *, field: str) -> str:
    if resolved is None:
        raise FailedPrecondition(f"{FAILED}: {field}: {sub_path!r} is not in it")
    path, kind = resolved
    if kind is not PathKind.DIRECTORY:
        raise FailedPrecondition(f"{FAILED}: {field}: {sub_path!r} is {kind.value} of it, not a directory")
    return path.strip("/")


def _sub_path(mount: pb.Mount) -> str:
    """Return the normalised sub-path; "" for the whole image."""
    clean = posixpath.normpath(mount.image_sub_path)
    return "" if clean == "." else clean
