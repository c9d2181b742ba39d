"""Rules for the mounts and devices of a container."""

import posixpath
import re

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate import rules
from shim.domain.errors import InvalidArgument
from shim.spec import devices, mounts
from shim.spec.image_volumes import is_image_volume

MAX_MOUNTS = 1000
"""Mounts of a container at most. The OCI runtime makes each at start, and each is in every status and Docker list."""
MAX_DEVICES = 1000

_PERMISSIONS = frozenset("rwm")
_CDI_NAME = re.compile(
    r"[a-zA-Z]([\w.-]*[a-zA-Z0-9])?"  # vendor
    r"/[a-zA-Z]([\w.-]*[a-zA-Z0-9])?"  # class
    r"=[a-zA-Z0-9]([\w.:-]*[a-zA-Z0-9])?\Z",
    re.ASCII,
)


def container_mounts(config: pb.ContainerConfig, *, field: str) -> None:
    """Check each mount of a new container. Several mounts may have the same target: the last covers the others."""
    rules.at_most(config.mounts, MAX_MOUNTS, field=field)
    for index, mount in enumerate(config.mounts):
        at = f"{field}[{index}]"
        rules.required(mount, "container_path", field=at)
        if is_image_volume(mount):
            _image_volume(mount, field=at)
        else:
            _host_path(mount, field=at)
        for option in mount.mount_options:
            if option not in mounts.MOUNT_OPTIONS:
                known = ", ".join(mounts.MOUNT_OPTIONS)
                raise InvalidArgument(f"{at}.mount_options: {option!r} is not known; these are: {known}")
        if mounts.container_path(mount) == "/":
            raise InvalidArgument(f"{at}.container_path {mount.container_path!r} is the root of the container")


def host_devices(config: pb.ContainerConfig, *, field: str) -> None:
    """Check the host devices of a new container. Two device plugins may give the same device."""
    rules.at_most(config.devices, MAX_DEVICES, field=field)
    taken: dict[str, int] = {}
    for index, device in enumerate(config.devices):
        at = f"{field}[{index}]"
        _host_device(device, field=at)
        target = devices.container_path(device)
        first = taken.setdefault(target, index)
        if config.devices[first].host_path != device.host_path:
            raise InvalidArgument(f"{at}.container_path {target} is already the container_path of {field}[{first}]")


def cdi_devices(config: pb.ContainerConfig, *, field: str) -> None:
    """Check the CDI devices of a new container: names of the form vendor/class=device."""
    rules.at_most(config.CDI_devices, MAX_DEVICES, field=field)
    for index, device in enumerate(config.CDI_devices):
        rules.required(device, "name", field=f"{field}[{index}]")
        if not _CDI_NAME.match(device.name):
            raise InvalidArgument(f"{field}[{index}].name {device.name!r} is not of the form vendor.com/class=device")


def _host_path(mount: pb.Mount, *, field: str) -> None:
    # image_sub_path has no meaning for a host path, and its host_path already includes the sub-path. But in a pod with
    # an image volume, a kubelet copies the subPath of every mount into it (makeMounts in its kubelet_pods.go).
    rules.absolute(mount.host_path, field=f"{field}.host_path")
    if mount.HasField("image"):
        raise InvalidArgument(f"{field}.image.image is empty: leave out image to mount the host_path")


def _image_volume(mount: pb.Mount, *, field: str) -> None:
    # `readonly` may be unset: image volumes are always read-only, and kubelet 1.31 leaves that to the runtime.
    if mount.host_path:
        raise InvalidArgument(f"{field}.host_path and image must not both be given")
    # Propagation from the host is harmless: the host mounts nothing inside an image.
    if mount.propagation == pb.PROPAGATION_BIDIRECTIONAL:
        raise InvalidArgument(f"{field}.propagation: mounts inside an image volume cannot propagate to the host")
    if posixpath.isabs(mount.image_sub_path):
        raise InvalidArgument(f"{field}.image_sub_path {mount.image_sub_path!r} is not relative to the image's root")
    rules.no_parent(mount.image_sub_path, field=f"{field}.image_sub_path")


def _host_device(device: pb.Device, *, field: str) -> None:
    rules.absolute(device.host_path, field=f"{field}.host_path")
    if not device.host_path.strip("/"):
        raise InvalidArgument(f"{field}.host_path {device.host_path!r} is the root of the host, not a device")
    if devices.container_path(device) == "/":
        raise InvalidArgument(f"{field}.container_path {device.container_path!r} is the root of the container")
    if not _PERMISSIONS.issuperset(device.permissions):
        raise InvalidArgument(f"{field}.permissions {device.permissions!r} may hold only r, w and m")
