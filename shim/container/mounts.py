"""Bind mounts of a container as Docker's `Mounts`."""

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import JsonObject
from shim.errors import FailedPrecondition, InvalidArgument, Unsupported

READ_ONLY_RECURSIVE_API = (1, 44)
"""From here on Docker makes read-only mounts recursively read-only unless told otherwise."""

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
    """Turn one CRI mount into Docker's form; the host path is resolved and made when it is missing.

    `recursive_read_only` says whether the pod's OCI runtime can make read-only mounts recursive.
    """
    _refuse_what_docker_cannot(mount, field=field)
    options: dict[str, Any] = {}
    if _PROPAGATION[mount.propagation]:
        options["Propagation"] = _PROPAGATION[mount.propagation]
    options |= _read_only_options(mount, field=field, api_version=api_version, recursive_read_only=recursive_read_only)
    docker: JsonObject = {
        **bind(str(ensure_host_path(mount.host_path, field=field)), _container_path(mount)),
        "ReadOnly": mount.readonly,
    }
    return {**docker, "BindOptions": options} if options else docker


def ensure_host_path(path: str, *, field: str) -> Path:
    """Resolve symlinks on the host, and make a missing path a directory, as the kubelet's hostPath needs.

    Docker would follow a link inside its own mount namespace, and only Engines from 23.0 on create the path.
    """
    resolved = Path(os.path.realpath(path))
    try:
        if not resolved.exists():
            resolved.mkdir(parents=True)
    except OSError as error:
        raise FailedPrecondition(f"{field}.host_path {path}: {error.strerror}") from error
    return resolved


def recursive_read_only_supported(runtime_status: Mapping[str, str] | None) -> bool:
    """Whether an OCI runtime reports the mount option `rro` among its features (Engine API 1.44)."""
    features = (runtime_status or {}).get("org.opencontainers.runtime-spec.features", "")
    return '"rro"' in features


def _container_path(mount: pb.Mount) -> str:
    return posixpath.normpath(posixpath.join("/", mount.container_path))


def _refuse_what_docker_cannot(mount: pb.Mount, *, field: str) -> None:
    if mount.HasField("image") and mount.image.image:
        raise Unsupported(f"{field}.image: image volumes are not implemented")
    if mount.uidMappings or mount.gidMappings:
        raise Unsupported(f"{field}.uidMappings: id-mapped mounts cannot be made through Docker")
    if mount.selinux_relabel and Path("/sys/fs/selinux/enforce").exists():
        raise Unsupported(f"{field}.selinux_relabel: relabelling is not implemented")


def _read_only_options(
    mount: pb.Mount, *, field: str, api_version: tuple[int, int], recursive_read_only: bool
) -> JsonObject:
    if not mount.recursive_read_only:
        tell = mount.readonly and api_version >= READ_ONLY_RECURSIVE_API
        return {"ReadOnlyNonRecursive": True} if tell else {}
    if not mount.readonly or mount.propagation != pb.PROPAGATION_PRIVATE:
        raise InvalidArgument(f"{field}.recursive_read_only needs readonly and private propagation")
    if api_version < READ_ONLY_RECURSIVE_API or not recursive_read_only:
        # The kubelet looks for this first word.
        raise FailedPrecondition(
            f"RROUnsupported: {field}.recursive_read_only is not supported by this Docker Engine and runtime"
        )
    return {"ReadOnlyForceRecursive": True}
