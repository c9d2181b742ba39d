"""Mounts of a container as Docker's `Mounts`."""

import posixpath
from collections.abc import Iterable, Sequence
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition
from shim.engine.interface import JsonObject
from shim.hostfs.host_paths import HostSource
from shim.spec.read_only import read_only_options

_PROPAGATION = {
    # Docker refuses an explicit rprivate for sources above its data root (a hostPath of / or /var/lib), and chooses a
    # suitable propagation if the field is empty.
    pb.PROPAGATION_PRIVATE: "",
    pb.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    pb.PROPAGATION_BIDIRECTIONAL: "rshared",
}

MOUNT_OPTIONS = ("nodev", "noexec", "nosuid")
"""The options that a mount may have more (KEP-5855). Docker has no field for them."""


def bind(source: str, target: str) -> JsonObject:
    """Build a plain read-write bind mount."""
    return {"Type": "bind", "Source": source, "Target": target}


def docker_mount(
    mount: pb.Mount, source: HostSource, *, field: str, api_version: tuple[int, int], recursive_read_only: bool
) -> JsonObject:
    """Build the mount of a host path with its inspected `source`.

    `recursive_read_only` says whether the pod's OCI runtime can make read-only mounts recursive.
    """
    options: dict[str, Any] = {}
    if _PROPAGATION[mount.propagation]:
        options["Propagation"] = _PROPAGATION[mount.propagation]
    options |= read_only_options(mount, field=field, api_version=api_version, recursive_read_only=recursive_read_only)
    check_propagation(source, propagation=mount.propagation, field=field)
    docker: JsonObject = {**bind(source.path, container_path(mount)), "ReadOnly": mount.readonly}
    return {**docker, "BindOptions": options} if options else docker


def docker_image_mount(mount: pb.Mount, found: JsonObject) -> JsonObject:
    """Complete the mount of an image with its path in the container."""
    return {**found, "Target": container_path(mount)}


def container_path(mount: pb.Mount) -> str:
    """Return the normalised path of a mount in the container; a relative path starts at the root."""
    return posixpath.normpath("/" + mount.container_path.lstrip("/"))


def last_in_each_place(mounts: Iterable[pb.Mount]) -> dict[str, pb.Mount]:
    """Return the mounts by container path: of several in one place, the last is made."""
    return {container_path(mount): mount for mount in mounts}


def mount_options(mounts: Iterable[pb.Mount]) -> dict[str, list[str]]:
    """Return the options that Docker has no field for, by container path."""
    found = last_in_each_place(mounts)
    return {path: list(mount.mount_options) for path, mount in found.items() if mount.mount_options}


def without_covered(docker: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the mounts without those that a later mount at the same path covers: Docker would refuse duplicates.

    Kubelets send duplicates if a device plugin and a volume use the same path; other runtimes make all of them.
    """
    last = {mount["Target"]: mount for mount in docker}
    return [mount for mount in docker if last[mount["Target"]] is mount]


def check_propagation(source: HostSource, *, propagation: pb.MountPropagation, field: str) -> None:
    """Raise FailedPrecondition if `source` is, or would be created, on a mount that cannot propagate as requested.

    Docker checks this too, but only at the start: the kubelet would see a failed container instead of a failed create.
    """
    mount = source.mount
    if propagation == pb.PROPAGATION_PRIVATE or mount is None:
        return
    if mount.shared or (mount.slave and propagation == pb.PROPAGATION_HOST_TO_CONTAINER):
        return
    wanted = "shared" if propagation == pb.PROPAGATION_BIDIRECTIONAL else "shared or slave"
    raise FailedPrecondition(
        f"{field}.propagation {pb.MountPropagation.Name(propagation)}: {source.path} is on the mount {mount.point},"
        f" which is not {wanted}; `mount --make-rshared {mount.point}` on the node makes it so"
    )
