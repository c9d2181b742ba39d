"""Images that are mounted as volumes. Docker mounts them itself, read-only and on either image store (API 1.48).

Docker resolves a sub-path only when the container is started, also mounts a file, and follows
links of the image on the host. The CRI wants a missing one and a file refused at create, so the image is inspected.
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
"""In one container, see `docker_image_mounts`: each needs another number of digits of the id."""

_LEAST_DIGITS = 12
"""Of an id, as Docker shows it; with fewer it might be that of two images."""

_ALL_DIGITS = 64
_NAME = (255 - 2 * (64 + len(",src=,dst="))) // 2
"""What a file's name leaves for digits and path, two characters for each, in the name that Docker 29 gives a mount."""

LONGEST_PATH = _NAME - _LEAST_DIGITS
"""Bytes of a path where an image can be mounted with Docker 29."""

FAILED = "ImageVolumeMountFailed"
"""The kubelet expects this at the beginning of a message."""


def is_image_volume(mount: pb.Mount) -> bool:
    """Return whether an image is mounted, not a host path."""
    return bool(mount.image.image)


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """What is mounted of an image that is on this node."""

    image_id: ImageId
    sub_path: str
    """A directory, relative to the image's root and without a link on the way; empty for all of the image."""
    path: str
    """Where it is mounted in the container."""


def image_volumes(rt: Runtime, mounts: Sequence[pb.Mount]) -> dict[int, ImageVolume]:
    """Find the images among a container's mounts, by their places in the list.

    Raise NotFound for an image that is not here, FailedPrecondition for a sub-path that is no directory of it,
    Unsupported where Docker cannot mount images; all begin as the kubelet wants it.
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
    """Return the configuration as the status reports it: with the id of every mounted image in its `image_ref`."""
    copy = pb.ContainerConfig()
    copy.CopyFrom(config)
    for index, volume in volumes.items():
        copy.mounts[index].image.image_ref = volume.image_id
    return copy


def docker_image_mounts(volumes: Mapping[int, ImageVolume]) -> dict[int, JsonObject]:
    """Build the mounts of image volumes, but for the places in the container.

    Docker takes the first digits of an id for an image. Docker 28 names what it mounts by container and `Source`, and
    fails at the second of a name, so that each mount of an image has another number of digits. Docker 29 names it by
    container, `Source` and path, in hexadecimal digits, as a file, which bounds the digits of an id.
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
    """Give how many digits of an id may name it at this path, the best first: those that fit, then more."""
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
    """Find the sub-paths that are given, with one inspection of each image."""
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
    """Return the sub-path in its shortest form, empty for all of the image."""
    clean = posixpath.normpath(mount.image_sub_path)
    return "" if clean == "." else clean
