"""Mounts of a container as Docker's `Mounts`."""

import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.container.propagation import check_propagation
from shim.container.read_only import read_only_options
from shim.container.relabel import relabel
from shim.engine.interface import JsonObject
from shim.errors import FailedPrecondition, Unsupported

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
    """Turn the mount of a host path into Docker's form; the path is resolved, and made when it is missing.

    `recursive_read_only` says whether the pod's OCI runtime can make read-only mounts recursive.
    """
    _refuse_what_docker_cannot(mount, field=field)
    options: dict[str, Any] = {}
    if _PROPAGATION[mount.propagation]:
        options["Propagation"] = _PROPAGATION[mount.propagation]
    options |= read_only_options(mount, field=field, api_version=api_version, recursive_read_only=recursive_read_only)
    source = ensure_host_path(mount.host_path, field=field)
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


def ensure_host_path(path: str, *, field: str) -> Path:
    """Resolve symlinks on the host, and make a missing path a directory, as the kubelet's hostPath needs.

    Docker would follow a link inside its own mount namespace, and only Engines from 23.0 on create the path. A link
    whose target is missing is refused: a directory there would be in the way of what is meant to come, often a socket.
    """
    resolved = Path(os.path.realpath(path))
    try:
        if _missing(resolved):
            _refuse_dangling(Path(path), field=field)
            resolved.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {path}: {error.strerror}") from error
    return resolved


def relabel_mounts(mounts: Sequence[pb.Mount], docker: Sequence[JsonObject], *, label: str) -> None:
    """Give the host paths whose mounts ask for it the SELinux label that Docker gave their container.

    `docker` are the same mounts in Docker's form, perhaps with more behind them.
    """
    for index, (mount, made) in enumerate(zip(mounts, docker, strict=False)):
        if mount.selinux_relabel and made["Type"] == "bind":
            relabel(Path(made["Source"]), label=label, field=f"config.mounts[{index}]")


def _missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    return False


def _refuse_dangling(path: Path, *, field: str) -> None:
    for part in (path, *path.parents):
        if part.is_symlink() and not part.exists():
            raise FailedPrecondition(
                f"{field}.host_path {path}: the link {part} leads to {part.readlink()}, where nothing is"
            )


def _refuse_what_docker_cannot(mount: pb.Mount, *, field: str) -> None:
    for name in ("uidMappings", "gidMappings"):
        if getattr(mount, name):
            raise Unsupported(f"{field}.{name}: id-mapped mounts cannot be made through Docker")
