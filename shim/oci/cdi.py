"""Reads the specifications of CDI devices (Container Device Interface) on the node.

Docker reads the same files for the devices in a create body. This module reads them for devices that NRI plugins ask
for after the create, for the OCI runtime.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from shim.base.atomic_files import read_regular
from shim.domain.errors import FailedPrecondition, reason_of

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
"""Default directories of specifications; later directories win."""
FILE_LIMIT = 1 << 20
"""Bytes of a file at most."""
FILES_LIMIT = 256
"""Files of a directory that are read."""

_NOT_A_SPECIFICATION = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    AttributeError,
    RecursionError,
    msgspec.ValidationError,
)
"""The YAML library raises all of these for malformed files (see `shim.credentials.provider_config`)."""


class DeviceNode(msgspec.Struct, frozen=True, rename="camel"):
    """A device file; missing values are taken from the device on the host."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class CdiMount(msgspec.Struct, frozen=True, rename="camel"):
    """A mount of a host path."""

    host_path: str
    container_path: str
    type: str = "bind"
    options: list[str] = []


class CdiHook(msgspec.Struct, frozen=True, rename="camel"):
    """A program that the OCI runtime runs."""

    hook_name: str
    path: str
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None


class Edits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Changes that a device makes to a container. Unknown fields are an error, since they must not be dropped."""

    env: list[str] = []
    device_nodes: list[DeviceNode] = []
    mounts: list[CdiMount] = []
    hooks: list[CdiHook] = []
    additional_gids: list[int] = msgspec.field(default_factory=list, name="additionalGids")


class _Device(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    container_edits: msgspec.Raw = msgspec.Raw(b"{}")


class _Specification(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    devices: list[_Device] = []
    container_edits: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(slots=True)
class Found:
    """The changes of all devices of a container, in the form of config.json."""

    env: list[tuple[str, str]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    hooks: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Kind of hook, such as `createRuntime`, and the hook."""
    groups: list[int] = field(default_factory=list)

    def add(self, edits: Edits) -> None:
        """Add the changes of a part of a specification. Raise OSError for a missing device."""
        self.env += ((name, value) for name, _, value in (line.partition("=") for line in edits.env))
        self.devices += map(_device, edits.device_nodes)
        self.mounts += (
            {
                "destination": mount.container_path,
                "type": mount.type,
                "source": mount.host_path,
                "options": mount.options or ["rbind"],
            }
            for mount in edits.mounts
        )
        for hook in edits.hooks:
            plain: dict[str, Any] = {"path": hook.path, "args": hook.args, "env": hook.env}
            self.hooks.append((hook.hook_name, plain | ({} if hook.timeout is None else {"timeout": hook.timeout})))
        self.groups += (group for group in edits.additional_gids if group)


def find(names: Iterable[str], *, directories: Sequence[str]) -> Found:
    """Return the changes of the devices with these names, such as `vendor.com/class=name`.

    Raise FailedPrecondition with the device and the directories or the file.
    """
    found = Found()
    kinds: set[str] = set()
    for name in dict.fromkeys(names):
        kind, _, device = name.partition("=")
        specification, path = _specification(kind, device, directories=directories)
        try:
            if kind not in kinds:  # the edits of a kind are added once for all its devices
                found.add(msgspec.json.decode(specification.container_edits, type=Edits))
            kinds.add(kind)
            wanted = next(each for each in specification.devices if each.name == device)
            found.add(msgspec.json.decode(wanted.container_edits, type=Edits))
        except OSError as error:
            raise FailedPrecondition(f"CDI device {name}: {path}: {error.filename}: {reason_of(error)}") from error
        except msgspec.ValidationError as error:
            raise FailedPrecondition(f"CDI device {name}: {path}: {error}") from error
    return found


def _specification(kind: str, device: str, *, directories: Sequence[str]) -> tuple[_Specification, Path]:
    unreadable = ""
    for directory in reversed(directories):
        for path in _files(Path(directory)):
            try:
                specification = _read(path)
            except OSError as error:
                unreadable = f"; {path}: {reason_of(error)}"
            except _NOT_A_SPECIFICATION:
                unreadable = f"; {path} is not a specification"
            else:
                if specification.kind == kind and any(each.name == device for each in specification.devices):
                    return specification, path
    where = ", ".join(directories)
    raise FailedPrecondition(f"CDI device {kind}={device}: no specification in {where} has it{unreadable}")


def _files(directory: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(directory))
    except OSError:  # most nodes lack some of the directories
        return
    for name in [name for name in names if name.endswith((".json", ".yaml", ".yml"))][:FILES_LIMIT]:
        yield directory / name


def _read(path: Path) -> _Specification:
    content = read_regular(path, most=FILE_LIMIT)
    if path.suffix != ".json":
        content = json.dumps(yaml.load(content, Loader=_LOADER)).encode()  # noqa: S506 - it is a safe loader
    return msgspec.json.decode(content, type=_Specification)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C, if the library has it, takes a tenth of the time."""


def _device(node: DeviceNode) -> dict[str, Any]:
    kind, major, minor = node.type, node.major, node.minor
    if not kind or not (major or minor):
        found = os.stat(node.host_path or node.path)  # noqa: PTH116 - its error has the file name
        kind = "b" if stat.S_ISBLK(found.st_mode) else "c"
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
    plain: dict[str, Any] = {"path": node.path, "type": kind, "major": major, "minor": minor}
    optional = {"fileMode": node.file_mode, "uid": node.uid, "gid": node.gid}
    return plain | {name: value for name, value in optional.items() if value is not None}
