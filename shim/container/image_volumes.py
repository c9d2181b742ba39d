"""Images that are mounted as volumes. Docker mounts them itself, read-only and on either image store (API 1.48).

Docker looks for a sub-path only when the container is started, and mounts a file as willingly as a directory; the CRI
wants both refused at create, so the image is looked into.
"""

import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject, PathKind
from shim.errors import FailedPrecondition, InvalidArgument, NotFound, Unsupported
from shim.ids import ImageId
from shim.image.rootfs import RootFs, look_into
from shim.runtime import Runtime
from shim.view.records import ContainerRecord

IMAGE_MOUNT_API = (1, 48)
"""First Engine API with mounts of the type `image`."""

MAX_OF_ONE_IMAGE = 32
"""In one container, see `with_distinct_images`: an id stays unique with so many characters less."""

FAILED = "ImageVolumeMountFailed"
"""The kubelet looks for this at the beginning of a message."""


def is_image_volume(mount: pb.Mount) -> bool:
    """Whether an image is mounted, not a host path."""
    return bool(mount.image.image)


def with_image_ids(rt: Runtime, config: pb.ContainerConfig) -> pb.ContainerConfig:
    """Give the configuration with the id of every mounted image in its `image_ref`, for Docker and for the status.

    Each is on this node, and its sub-path a directory of it. Unsupported where Docker cannot mount images; all messages
    begin as the kubelet wants it.
    """
    resolved = pb.ContainerConfig()
    resolved.CopyFrom(config)
    volumes = {index: mount for index, mount in enumerate(resolved.mounts) if is_image_volume(mount)}
    for index, mount in volumes.items():
        _check_supported(rt, field=f"config.mounts[{index}].image")
        mount.image.image_ref = _image_id(rt, mount.image, field=f"config.mounts[{index}].image.image")
    _check_count(volumes.values())
    _check_sub_paths(rt, volumes)
    return resolved


def docker_image_mount(mount: pb.Mount, *, target: str) -> JsonObject:
    """Docker's form of a mount whose `image_ref` is known."""
    docker: JsonObject = {"Type": "image", "Source": mount.image.image_ref, "Target": target, "ReadOnly": True}
    sub_path = _sub_path(mount)
    return {**docker, "ImageOptions": {"Subpath": sub_path}} if sub_path else docker


def with_distinct_images(docker: Iterable[JsonObject]) -> list[JsonObject]:
    """Let an image be mounted several times in one container.

    Docker 28 names what it mounts by container and `Source`, and fails at the second of a name. But it also takes an id
    without its last characters, as people type them.
    """
    seen: Counter[str] = Counter()
    return [_distinct(mount, seen) if mount["Type"] == "image" else mount for mount in docker]


def check_mounted(rt: Runtime, record: ContainerRecord) -> None:
    """FailedPrecondition when the images of a container are not mounted any more.

    Docker mounts them at create, on the host. A daemon that has been restarted since then may start the container all
    the same, with empty directories in their place (seen on 28 with overlay2).
    """
    if not any(is_image_volume(mount) for mount in record.config.mounts):
        return
    for mount in rt.engine.inspect_container(record.id).mounts or ():
        if mount.type == "image" and not os.path.ismount(mount.source):
            raise FailedPrecondition(
                f"{FAILED}: container {record.id}: the image for {mount.destination} is not mounted any more: Docker"
                " has been restarted since the container was created"
            )


def _distinct(mount: JsonObject, seen: Counter[str]) -> JsonObject:
    source = mount["Source"]
    shortened = source[: len(source) - seen[source]]
    seen[source] += 1
    return {**mount, "Source": shortened}


def _check_supported(rt: Runtime, *, field: str) -> None:
    major, minor = rt.engine.api_version
    if (major, minor) < IMAGE_MOUNT_API:
        raise Unsupported(
            f"{FAILED}: {field}: mounting an image needs Docker Engine 28 (API 1.48), this is API {major}.{minor}"
        )


def _image_id(rt: Runtime, image: pb.ImageSpec, *, field: str) -> ImageId:
    try:
        record = rt.view.image(image.image)
    except InvalidArgument as error:
        raise InvalidArgument(f"{FAILED}: {field}: {error}") from error
    if record is None:
        raise NotFound(f"{FAILED}: {field}: {image.image!r} is not on this node; pull it first")
    return record.id


def _check_count(volumes: Iterable[pb.Mount]) -> None:
    counts = Counter(mount.image.image_ref for mount in volumes)
    for image_id, count in counts.items():
        if count > MAX_OF_ONE_IMAGE:
            raise InvalidArgument(
                f"{FAILED}: config.mounts has {count} mounts of image {image_id}, at most {MAX_OF_ONE_IMAGE}"
                " are allowed"
            )


def _check_sub_paths(rt: Runtime, volumes: Mapping[int, pb.Mount]) -> None:
    with_sub_path = {index: mount for index, mount in volumes.items() if _sub_path(mount)}
    for image_id in sorted({mount.image.image_ref for mount in with_sub_path.values()}):
        of_image = {index: mount for index, mount in with_sub_path.items() if mount.image.image_ref == image_id}
        kinds = look_into(rt, image_id=ImageId(image_id), look=partial(_kinds, of_image.values()))
        for (index, mount), kind in zip(of_image.items(), kinds, strict=True):
            if kind is not PathKind.DIRECTORY:
                what = "is not in it" if kind is None else f"is {kind.value} of it, not a directory"
                field = f"config.mounts[{index}].image_sub_path"
                raise FailedPrecondition(f"{FAILED}: {field}: image {mount.image.image!r}: {_sub_path(mount)!r} {what}")


def _kinds(volumes: Iterable[pb.Mount], files: RootFs) -> list[PathKind | None]:
    return [files.entry("/" + _sub_path(mount)) for mount in volumes]


def _sub_path(mount: pb.Mount) -> str:
    """The sub-path in its shortest form, empty for all of the image."""
    clean = posixpath.normpath(mount.image_sub_path)
    return "" if clean == "." else clean
