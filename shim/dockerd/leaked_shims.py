"""Finds containerd-shims whose containers Docker has removed.

Docker does not know these containerd-shims: the containerd-shim has lost an exit, or dockerd was killed while it
removed the container. A containerd-shim takes some 20 MiB, and the processes of its tasks keep running.

The search reads /proc. The working directory of a containerd-shim is its first task's directory, and the directories of
all tasks have the same parent. A task belongs to the containerd-shim that listens at the address in the task's
directory, identified by the inode of the socket. So a pod's process may have any name, but cannot pose as a
containerd-shim.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shim.base import proc
from shim.base.atomic_files import read_regular
from shim.engine.daemon_process import PROC, Listeners, open_files

CONFIG_LIMIT = 4 << 20
"""Maximum bytes of a task's OCI configuration, which is mostly the seccomp profile."""
_SMALL = 4096
"""Maximum bytes read from a file with a name or an address."""

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
    """A server and its Docker, as recognizable in the OCI configuration of their containers."""

    docker_root: Path
    """Docker's data root, the parent of containers' root file systems."""
    resolv_conf: Path
    """The server's directory with the resolv.conf files of pods."""


@dataclass(frozen=True, slots=True)
class LeakedShim:
    """A containerd-shim with tasks of containers that Docker has removed."""

    pid: int
    containers: tuple[str, ...]
    """The ids of the removed containers."""
    serves_others: bool
    """Whether it also has a task of a container that Docker knows."""
    ours: bool
    """Whether a server with this state directory created all removed containers."""


def leaked_shims(known: Callable[[], Collection[str]], *, maker: Maker, proc_dir: Path = PROC) -> list[LeakedShim]:
    """Return the containerd-shims with tasks of containers that the maker's Docker has removed.

    `known` returns the ids of all containers of this Docker. It is called after the search, so that a new container
    does not count as leaked.
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
    """Yield each containerd-shim, with its tasks in the maker's Docker, and whether the maker created each task.

    A node has hundreds of containerd-shims and tasks. So their sockets are listed only once.
    """
    listeners, known = Listeners(), dict[Path, dict[str, list[Path]]]()
    for pid in _shims(proc_dir):
        try:
            parent = (proc_dir / str(pid) / "cwd").readlink().parent
            if parent not in known:
                known[parent] = _by_socket(parent, listeners)
        except OSError:  # it has exited, or is not a containerd-shim
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
    """Return the path of the socket of a task's containerd-shim, stored by containerd 2.0 or by older releases."""
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
