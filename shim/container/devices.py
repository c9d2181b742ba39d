"""Host devices of a container as Docker's `Devices`.

Docker looks at devices only when the container is started, and takes a FIFO for one; here they are looked at before.
"""

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject
from shim.errors import FailedPrecondition, reason_of

MAX_ENTRIES = 4096
"""Of a directory of devices, with all below it: Docker walks it at every start."""


def docker_devices(devices: Sequence[pb.Device]) -> list[JsonObject]:
    """Devices and directories of devices; Docker takes all devices from a directory.

    FailedPrecondition names the field of a host path that is neither.
    """
    return [_docker_device(device, field=f"config.devices[{index}]") for index, device in enumerate(devices)]


def container_path(device: pb.Device) -> str:
    """Where a device is seen, without `..` and the like."""
    return posixpath.normpath("/" + (device.container_path or device.host_path).lstrip("/"))


def _docker_device(device: pb.Device, *, field: str) -> JsonObject:
    source = Path(os.path.realpath(device.host_path))
    try:
        _check(source, field=f"{field}.host_path {device.host_path}")
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {device.host_path}: {reason_of(error)}") from error
    return {
        "PathOnHost": str(source),
        "PathInContainer": container_path(device),
        "CgroupPermissions": device.permissions or "rwm",
    }


def _check(source: Path, *, field: str) -> None:
    mode = source.stat().st_mode
    if _is_device(mode):
        return
    if not stat.S_ISDIR(mode):
        raise FailedPrecondition(f"{field} is neither a device nor a directory of devices")
    found = False
    for number, entry in enumerate(_entries_below(str(source))):
        if number == MAX_ENTRIES:
            raise FailedPrecondition(f"{field} holds more than {MAX_ENTRIES} files; name the devices")
        found = found or _is_device(entry.stat(follow_symlinks=False).st_mode)
    if not found:
        raise FailedPrecondition(f"{field} is a directory without a device")


def _entries_below(directory: str) -> Iterator[os.DirEntry[str]]:
    waiting = [directory]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _is_device(mode: int) -> bool:
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
