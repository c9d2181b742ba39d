"""Mounts of a container as Docker's `Mounts`."""

import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.container.host_paths import ensure_directory, resolved_host_path
from shim.container.propagation import check_propagation
from shim.container.read_only import read_only_options
from shim.container.relabel import relabel
from shim.engine.interface import JsonObject
from shim.errors import FailedPrecondition, Unsupported, reason_of

_PROPAGATION = {
    # Docker refuses an explicit rprivate for sources above its own data root (a hostPath of / or /var/lib), and
    # chooses a fitting one when none is named.
    pb.PROPAGATION_PRIVATE: "",
    pb.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    pb.PROPAGATION_BIDIRECTIONAL: "rshared",
}


def bind(source: str, target: str) -> JsonObject:
    """A plain read-write bind mount of the shim's own."""
    return {"Type": "bind", "Source": source, "Target": target}


def docker_mount(mount: pb.Mount, *, field: str, api_version: tuple[int, int], recursive_read_only: bool) -> JsonObject:
    """Turn the mount of a host path into Docker's form; the path is resolved, and need not be there yet.

    `recursive_read_only` says whether the pod's OCI runtime can make read-only mounts recursive.
    """
    _refuse_what_docker_cannot(mount, field=field)
    options: dict[str, Any] = {}
    if _PROPAGATION[mount.propagation]:
        options["Propagation"] = _PROPAGATION[mount.propagation]
    options |= read_only_options(mount, field=field, api_version=api_version, recursive_read_only=recursive_read_only)
    source = resolved_host_path(mount.host_path, field=field)
    check_propagation(source, propagation=mount.propagation, field=field)
    docker: JsonObject = {**bind(str(source), container_path(mount)), "ReadOnly": mount.readonly}
    return {**docker, "BindOptions": options} if options else docker


def docker_image_mount(mount: pb.Mount, found: JsonObject, *, field: str) -> JsonObject:
    """Complete the mount of an image that was found on the node with its place in the container."""
    _refuse_what_docker_cannot(mount, field=field)
    return {**found, "Target": container_path(mount)}


def container_path(mount: pb.Mount) -> str:
    """Where a mount is seen, without `..` and the like; a relative path begins at the root."""
    return posixpath.normpath("/" + mount.container_path.lstrip("/"))


def uncovered(docker: Sequence[JsonObject]) -> list[JsonObject]:
    """Leave out the mounts that a later one in the same place covers, which Docker would refuse.

    Kubelets send such, when a device plugin and a volume go to one place, and the other runtimes make all of them.
    """
    last = {mount["Target"]: mount for mount in docker}
    return [mount for mount in docker if last[mount["Target"]] is mount]


def ensure_host_paths(mounts: Sequence[pb.Mount], docker: Sequence[JsonObject]) -> None:
    """Make the host paths that are missing, once nothing speaks against the container any more.

    `docker` are the same mounts in Docker's form, perhaps with more behind them.
    """
    for index, (mount, body) in enumerate(zip(mounts, docker, strict=False)):
        if body["Type"] != "bind":
            continue
        try:
            ensure_directory(Path(body["Source"]))
        except OSError as error:
            raise FailedPrecondition(
                f"config.mounts[{index}].host_path {mount.host_path}: {reason_of(error)}"
            ) from error


def relabel_mounts(mounts: Sequence[pb.Mount], docker: Sequence[JsonObject], *, label: str) -> None:
    """Give the host paths whose mounts ask for it the SELinux label that Docker gave their container.

    `docker` are the same mounts in Docker's form, perhaps with more behind them.
    """
    for index, (mount, made) in enumerate(zip(mounts, docker, strict=False)):
        if mount.selinux_relabel and made["Type"] == "bind":
            relabel(Path(made["Source"]), label=label, field=f"config.mounts[{index}]")


def _refuse_what_docker_cannot(mount: pb.Mount, *, field: str) -> None:
    for name in ("uidMappings", "gidMappings"):
        if getattr(mount, name):
            raise Unsupported(f"{field}.{name}: id-mapped mounts cannot be made through Docker")
