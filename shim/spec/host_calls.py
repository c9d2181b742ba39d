"""Accesses to host paths by CreateContainer and RunPodSandbox, in the helper process (`shim.hostfs`): any may hang."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.domain.errors import FailedPrecondition, reason_of
from shim.engine.interface import JsonObject
from shim.hostfs.client import HostFs
from shim.hostfs.file_parts import read_parts
from shim.hostfs.host_devices import inspect_device
from shim.hostfs.host_paths import HostSource, ensure_directory, inspect_host_path
from shim.hostfs.relabel import relabel
from shim.spec.image_volumes import is_image_volume
from shim.spec.seccomp import FIELD, MAX_PROFILE, localhost_path


def host_sources(host_fs: HostFs, mounts: Sequence[pb.Mount]) -> dict[int, HostSource]:
    """Inspect the host paths of a container's mounts; return them by the index of the mount."""
    return {
        index: _host_source(host_fs, mount, index) for index, mount in enumerate(mounts) if not is_image_volume(mount)
    }


def _host_source(host_fs: HostFs, mount: pb.Mount, index: int) -> HostSource:
    field = f"config.mounts[{index}]"
    with_mount = mount.propagation != pb.PROPAGATION_PRIVATE
    inspect = partial(inspect_host_path, mount.host_path, field=field, with_mount=with_mount)
    return host_fs.call(inspect, path=mount.host_path, what=f"inspect {field}.host_path")


def device_sources(host_fs: HostFs, devices: Sequence[pb.Device]) -> list[str]:
    """Return the resolved host paths of a container's devices, in order."""
    return [_device_source(host_fs, device.host_path, index) for index, device in enumerate(devices)]


def _device_source(host_fs: HostFs, host_path: str, index: int) -> str:
    field = f"config.devices[{index}]"
    inspect = partial(inspect_device, host_path, field=field)
    return host_fs.call(inspect, path=host_path, what=f"inspect {field}.host_path")


def seccomp_profile(
    host_fs: HostFs, context: pb.LinuxContainerSecurityContext | pb.LinuxSandboxSecurityContext
) -> bytes:
    """Read the localhost seccomp profile of a container or pod; b"" for other kinds of profile.

    Raise FailedPrecondition if the file cannot be read or is too large.
    """
    profile = context.seccomp if context.HasField("seccomp") else None
    path = localhost_path(profile, deprecated=context.seccomp_profile_path, field=FIELD)
    return _profile_content(host_fs, path) if path is not None else b""


def _profile_content(host_fs: HostFs, path: Path) -> bytes:
    call = partial(host_fs.call, path=str(path), what=f"read {FIELD}")
    try:
        return read_parts(path, most=MAX_PROFILE, call=call)
    except OSError as error:
        raise FailedPrecondition(f"{FIELD}: seccomp profile {path}: {reason_of(error)}") from error


def ensure_host_paths(host_fs: HostFs, mounts: Sequence[pb.Mount], docker: Sequence[JsonObject]) -> None:
    """Create missing host paths, after all other checks of the container have passed.

    `docker` holds the same mounts in Docker's form, perhaps followed by others.
    """
    for index, (mount, body) in enumerate(zip(mounts, docker, strict=False)):
        if body["Type"] == "bind":
            _ensure_host_path(
                host_fs, mount.host_path, source=body["Source"], field=f"config.mounts[{index}].host_path"
            )


def _ensure_host_path(host_fs: HostFs, host_path: str, *, source: str, field: str) -> None:
    try:
        host_fs.call(ensure_directory, Path(source), path=host_path, what=f"make {field}")
    except OSError as error:
        raise FailedPrecondition(f"{field} {host_path}: {reason_of(error)}") from error


def relabel_mounts(host_fs: HostFs, mounts: Sequence[pb.Mount], docker: Sequence[JsonObject], *, label: str) -> None:
    """Set the container's SELinux label `label` on the host paths whose mounts ask for it.

    `docker` holds the same mounts in Docker's form, perhaps followed by others. A large volume takes up to the client's
    deadline. After that the walk continues, and the next call skips the files labelled by then.
    """
    for index, (mount, made) in enumerate(zip(mounts, docker, strict=False)):
        if mount.selinux_relabel and made["Type"] == "bind":
            field, source = f"config.mounts[{index}]", made["Source"]
            label_all = partial(relabel, Path(source), label=label, field=field)
            what = f"{field}.selinux_relabel"
            host_fs.call(label_all, path=f"labels of {source}", what=what, seconds=deadline.LONGEST)
