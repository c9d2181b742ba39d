"""Reads the manifest of a pod's checkpoint, and checks that containers can continue from it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import json_format

from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import read_regular
from shim.criu.layout import MANIFEST, MANIFEST_LIMIT
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of
from shim.oci_runtime.restore import IMAGES
from shim.spec.mounts import last_in_each_place

_SHOWN = 5
_PROCESS = re.compile(rf"{IMAGES}/core-(\d{{1,9}})\.img")
"""criu's image of a process or thread."""


class Entry(msgspec.Struct, frozen=True):
    """A container of a checkpoint."""

    name: str
    """metadata.name of the container."""
    directory: str
    files: dict[str, Any]
    """Its files, by path below `directory`."""
    layers: list[str]
    """Digests of the uncompressed layers of its image."""
    config: dict[str, Any]
    """ContainerConfig as JSON, without command, args and envs."""


class Manifest(msgspec.Struct, frozen=True):
    """The part of a manifest that the server reads."""

    containers: list[Entry]


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest in a directory that `shim.criu.worker` has checked. Raise FailedPrecondition."""
    try:
        return msgspec.json.decode(read_regular(directory / MANIFEST, most=MANIFEST_LIMIT), type=Manifest)
    except OSError as error:
        raise FailedPrecondition(f"checkpoint_path: read {MANIFEST}: {reason_of(error)}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FailedPrecondition(f"checkpoint_path: the checkpoint is damaged: {MANIFEST}: {error}") from error


def highest_pid(manifest: Manifest) -> int:
    """Return the highest id of a process or thread in the checkpoint, as its container sees it; 0 without processes."""
    names = (name for entry in manifest.containers for name in entry.files)
    return max((int(found[1]) for name in names if (found := _PROCESS.fullmatch(name))), default=0)


def entries_by_name(manifest: Manifest, configs: Sequence[pb.ContainerConfig]) -> Mapping[str, Entry]:
    """Return the entries by container name. Raise InvalidArgument unless `configs` have exactly these names."""
    entries = {entry.name: entry for entry in manifest.containers}
    wanted = {config.metadata.name for config in configs}
    for names, what in (
        (entries.keys() - wanted, "the checkpoint has containers that are missing"),
        (wanted - entries.keys(), "the checkpoint does not have the containers"),
    ):
        if names:
            raise InvalidArgument(f"container_configs: {what}: {', '.join(sorted(names)[:_SHOWN])}")
    if len(entries) != len(manifest.containers) or len(wanted) != len(configs):
        raise InvalidArgument("container_configs: several containers have the same name")
    return entries


def check_same(entry: Entry, config: pb.ContainerConfig, *, layers: Sequence[str], field: str) -> None:
    """Check that a container can continue from an entry: it must have the same image, rights and mounts.

    `layers` are of the image of `config`. Raise FailedPrecondition, which names the field.
    """
    try:
        before = json_format.ParseDict(entry.config, pb.ContainerConfig(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise FailedPrecondition(f"checkpoint_path: the checkpoint is damaged: {entry.name!r}: {error}") from error
    if list(layers) != entry.layers:
        raise FailedPrecondition(f"{field}.image: {config.image.image!r} is not the image of the checkpoint")
    _check_mounts(before, config, field=f"{field}.mounts")
    same = (
        ("linux.security_context", before.linux.security_context, config.linux.security_context),
        ("tty", before.tty, config.tty),
        ("stdin", before.stdin, config.stdin),
        ("devices", list(before.devices), list(config.devices)),
        ("CDI_devices", list(before.CDI_devices), list(config.CDI_devices)),
    )
    for name, old, new in same:
        if old != new:
            raise FailedPrecondition(f"{field}.{name} differs from the checkpoint")


def _check_mounts(before: pb.ContainerConfig, config: pb.ContainerConfig, *, field: str) -> None:
    old, new = _mounts(before), _mounts(config)
    for paths, what in (
        (old.keys() - new.keys(), "the checkpoint has mounts that are missing"),
        (new.keys() - old.keys(), "the checkpoint does not have the mounts"),
        ({path for path in old if path in new and old[path] != new[path]}, "other options than at the checkpoint"),
    ):
        if paths:
            raise FailedPrecondition(f"{field}: {what}: {', '.join(sorted(paths)[:_SHOWN])}")


def _mounts(config: pb.ContainerConfig) -> dict[str, tuple[object, ...]]:
    """Return the mount options that criu restores, by container path. Sources may differ."""
    return {
        path: (mount.readonly, mount.recursive_read_only, mount.propagation, sorted(mount.mount_options))
        for path, mount in last_in_each_place(config.mounts).items()
    }
