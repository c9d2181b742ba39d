"""Host devices of a container as Docker's `Devices` and `DeviceRequests`. Pure."""

from collections.abc import Iterable

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject
from shim.errors import Unsupported

CDI_API = (1, 44)
"""First Engine API that takes CDI device names."""


def docker_devices(devices: Iterable[pb.Device]) -> list[JsonObject]:
    """Devices and directories of devices; Docker walks directories itself."""
    return [
        {
            "PathOnHost": device.host_path,
            "PathInContainer": device.container_path or device.host_path,
            "CgroupPermissions": device.permissions or "rwm",
        }
        for device in devices
    ]


def docker_device_requests(devices: Iterable[pb.CDIDevice], *, api_version: tuple[int, int]) -> list[JsonObject]:
    """CDI devices by their qualified names; Docker fails on one it cannot resolve."""
    names = [device.name for device in devices]
    if names and api_version < CDI_API:
        raise Unsupported(
            f"config.CDI_devices: {names[0]!r} needs Docker Engine 25 (API 1.44), this is API "
            f"{api_version[0]}.{api_version[1]}"
        )
    return [{"Driver": "cdi", "DeviceIDs": names}] if names else []
