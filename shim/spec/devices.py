"""Host devices of a container as Docker's `Devices`."""

import posixpath
from collections.abc import Sequence

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject


def docker_devices(devices: Sequence[pb.Device], sources: Sequence[str]) -> list[JsonObject]:
    """Build Devices for devices and for directories; Docker takes all devices of a directory.

    `sources` are their resolved paths on the host, in the same order (`shim.hostfs.host_devices`).
    """
    return [_docker_device(device, source) for device, source in zip(devices, sources, strict=True)]


def container_path(device: pb.Device) -> str:
    """Return the normalised path of a device in the container."""
    return posixpath.normpath("/" + (device.container_path or device.host_path).lstrip("/"))


def _docker_device(device: pb.Device, source: str) -> JsonObject:
    return {
        "PathOnHost": source,
        "PathInContainer": container_path(device),
        "CgroupPermissions": device.permissions or "rwm",
    }
