"""Finds containerd-shims whose containers Docker has removed.

Docker does not know these containerd-shims: an exit was lost in the containerd-shim, or dockerd was killed while it
removed the container. A containerd-shim takes some 20 MiB, and the processes of its tasks go on.

The search goes through /proc. A containerd-shim works in the directory of its first task, and the directories of all
tasks have the same parent. A task belongs to the containerd-shim that listens at the address in the task's directory,
identified by the inode of the socket. So a process of a pod may have any name, but cannot pose as another process.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shim.base import proc
from shim.base.atomic_files import read_regular
from shim.engine.daemon_process import PROC, Listeners, open_files

CONFIG_LIMIT = 4 << 20
"""Bytes of a task's OCI configuration; most of it is the seccomp profile."""
_SMALL = 4096
"""Bytes read from a file that holds a name or an address."""

_COMM = b"containerd-shim"
"""The name `containerd-shim-runc-v2`, truncated as in the kernel."""
_RESOLV_CONF = "/etc/resolv.conf"


class _Root(msgspec.Struct):
    path: str = ""


class _Mount(msgspec.Struct):
    destination: str = ""
    source: str = ""


class _Config(msgspec.Struct):
    """The part of an OCI configuration that identifies the creator of the container."""

    root: _Root = msgspec.field(default_factory=_Root)
    mounts: list[_Mount] = []


class _Bootstrap(msgspec.Struct):
    address: str = ""


@dataclass(frozen=True, slots=True)
class Maker:
    """The creator of a container, as its OCI configuration shows it."""

    docker_root: Path
    """Docker's data root, which holds the root file system of the container."""
    resolv_conf: Path
    """The server's directory of resolv.conf files, which holds the pod's."""


@dataclass(frozen=True, slots=True)
class LeakedShim:
    """A containerd-shim with tasks of containers that Docker has removed."""

    pid: int
    containers: tuple[str, ...]
    """The ids of the removed containers."""
    serves_others: bool
    """Whether it also has the task of a container that Docker knows."""
    ours: bool
    """Whether this server, now or in an earlier run with the same state directory, created all removed containers."""


def leaked_shims(known: Callable[[], Collection[str]], *, maker: Maker, proc_dir: Path = PROC) -> list[LeakedShim]:
    """Return the containerd-shims with tasks of containers that the maker's Docker has removed.

    `known` returns the ids of all containers of this Docker. It is called after the containerd-shims were found, so
    that a new container is no leak.
    """
    found = [(pid, tasks) for pid, tasks in _tasks_of_shims(maker, proc_dir) if tasks]
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
    # Read `comm`, not the command line, which is unreadable for a process that hangs in the kernel.
    for directory in proc_dir.iterdir():
        if directory.name.isdecimal() and _read(directory / "comm").startswith(_COMM):
            yield int(directory.name)


def _tasks_of_shims(maker: Maker, proc_dir: Path) -> Iterator[tuple[int, dict[str, bool]]]:
    """Yield each containerd-shim, with its tasks in the maker's Docker, and for each whether the maker created it.

    A node has hundreds of shims and tasks: the tasks are found by their sockets, which are listed once.
    """
    listeners, known = Listeners(), dict[Path, dict[str, list[Path]]]()
    for pid in _shims(proc_dir):
        try:
            parent = (proc_dir / str(pid) / "cwd").readlink().parent
            if parent not in known:
                known[parent] = _by_socket(parent, listeners)
        except OSError:  # it has exited, or is no containerd-shim
            continue
        directories = [each for link in open_files(proc_dir / str(pid)) for each in known[parent].get(link, ())]
        created = {each.name: _is_created_by(maker, each) for each in directories}
        yield pid, {name: ours for name, ours in created.items() if ours is not None}


def _by_socket(parent: Path, listeners: Listeners) -> dict[str, list[Path]]:
    """Return the directories of tasks by the sockets of their containerd-shims. Raise OSError."""
    found: dict[str, list[Path]] = {}
    for directory in parent.iterdir():
        for link in listeners.at(_address(directory)):
            found.setdefault(link, []).append(directory)
    return found


def _is_created_by(maker: Maker, directory: Path) -> bool | None:
    """Return whether the maker created the container of a task; None if it is not in the maker's Docker."""
    config = _config(directory)
    if config is None or not Path(config.root.path).is_relative_to(maker.docker_root):
        return None
    sources = [Path(each.source) for each in config.mounts if each.destination == _RESOLV_CONF]
    return [source.parent for source in sources] == [maker.resolv_conf]


def _address(directory: Path) -> str:
    """Return the path of the socket of a task's containerd-shim, as containerd before 2.0 or from 2.0 on stores it."""
    try:
        address = msgspec.json.decode(_read(directory / "bootstrap.json"), type=_Bootstrap).address
    except msgspec.DecodeError:
        address = proc.to_text(_read(directory / "address"))
    return address.removeprefix("unix://")


def _config(directory: Path) -> _Config | None:
    try:
        return msgspec.json.decode(read_regular(directory / "config.json", most=CONFIG_LIMIT), type=_Config)
    except (OSError, msgspec.DecodeError):  # the task is being created or removed
        return None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_SMALL)
    except OSError:
        return b""
