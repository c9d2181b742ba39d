"""What containerd keeps of containers that Docker has removed: containerd-shims with tasks.

Docker knows nothing of them: an end was lost in a shim, or dockerd was killed while it removed a container. A shim
takes some 20 MiB, and what runs in its tasks goes on.

A shim is found in /proc. It works in the directory of its first task, and beside that are those of all others. A task
belongs to the shim that listens at the address in its directory, by the inode of the socket: whatever a process of a
pod calls itself, it can name no other process than itself.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shim.base import proc
from shim.base.atomic_files import read_regular
from shim.engine.daemon_process import PROC, holds, listening_inodes

CONFIG_LIMIT = 4 << 20
"""Most bytes of a task's OCI configuration; most of it is the seccomp profile."""
_SMALL = 4096
"""Most bytes read of a file that has a name or an address."""

_COMM = b"containerd-shim"
"""The name of `containerd-shim-runc-v2`, as the kernel cuts it."""
_RESOLV_CONF = "/etc/resolv.conf"


class _Root(msgspec.Struct):
    path: str = ""


class _Mount(msgspec.Struct):
    destination: str = ""
    source: str = ""


class _Config(msgspec.Struct):
    """The part of an OCI configuration that tells who made the container."""

    root: _Root = msgspec.field(default_factory=_Root)
    mounts: list[_Mount] = []


class _Bootstrap(msgspec.Struct):
    address: str = ""


@dataclass(frozen=True, slots=True)
class Maker:
    """Who made a container, as its OCI configuration shows it."""

    docker_root: Path
    """The data directory of the Docker that has its root file system."""
    resolv_conf: Path
    """The directory of the server that made the resolv.conf of its pod."""


@dataclass(frozen=True, slots=True)
class LeakedShim:
    """A containerd-shim with tasks of containers that Docker has removed."""

    pid: int
    containers: tuple[str, ...]
    """Their ids."""
    serves_others: bool
    """Whether it has the task of a container that Docker knows, too."""
    ours: bool
    """Whether all of these containers were made by this server, or an earlier one with its state directory."""


def leaked_shims(known: Callable[[], Collection[str]], *, maker: Maker, proc_dir: Path = PROC) -> list[LeakedShim]:
    """Return the shims with tasks of containers that the maker's Docker has removed.

    `known` returns the ids of all containers of this Docker. It is called after the shims were found: a container that
    is made in the meantime is no leak.
    """
    found = [(pid, tasks) for pid in _shims(proc_dir) if (tasks := _tasks(pid, maker, proc_dir))]
    containers = known() if found else ()
    return [
        LeakedShim(
            pid=pid,
            containers=tuple(sorted(gone)),
            serves_others=len(gone) < len(tasks),
            ours=all(tasks[each] for each in gone),
        )
        for pid, tasks in found
        if (gone := tasks.keys() - containers)
    ]


def _shims(proc_dir: Path) -> Iterator[int]:
    # By `comm`, and not by the command line, which is not to be had of a process that the kernel holds.
    for directory in proc_dir.iterdir():
        if directory.name.isdecimal() and _read(directory / "comm").startswith(_COMM):
            yield int(directory.name)


def _tasks(pid: int, maker: Maker, proc_dir: Path) -> dict[str, bool]:
    """Return the containers of the maker's Docker whose tasks a shim has, and for each whether the maker made it."""
    try:
        beside = (proc_dir / str(pid) / "cwd").readlink().parent
        directories = list(beside.iterdir())
    except OSError:  # it has ended, or is none
        return {}
    found = {}
    for directory in directories:
        inodes = {f"socket:[{inode}]" for inode in listening_inodes(_address(directory))}
        config = _config(directory) if holds(proc_dir / str(pid), inodes) else None
        if config is not None and Path(config.root.path).is_relative_to(maker.docker_root):
            sources = [Path(each.source) for each in config.mounts if each.destination == _RESOLV_CONF]
            found[directory.name] = [source.parent for source in sources] == [maker.resolv_conf]
    return found


def _address(directory: Path) -> str:
    """Return the path of the socket of a task's shim, as releases of containerd before and from 2.0 on keep it."""
    try:
        address = msgspec.json.decode(_read(directory / "bootstrap.json"), type=_Bootstrap).address
    except msgspec.DecodeError:
        address = proc.to_text(_read(directory / "address"))
    return address.removeprefix("unix://")


def _config(directory: Path) -> _Config | None:
    try:
        return msgspec.json.decode(read_regular(directory / "config.json", most=CONFIG_LIMIT), type=_Config)
    except (OSError, msgspec.DecodeError):  # the task is just being made or removed
        return None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_SMALL)
    except OSError:
        return b""
