"""Run a command in a control group that is the root of its namespace: `python -m integration.node.own_root COMMAND`.

A kubelet with the control group root `/` then works below a group of the run, and sees no group of the machine.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from integration.node.commands import NodeError, run
from integration.node.isolation import this_node
from integration.node.mounts import mounts_below

_CGROUPS = Path("/sys/fs/cgroup")
_NEWCGROUP, _NEWNS = 0x2000000, 0x20000
_MOUNT_SECONDS = 60
_UNUSUAL = {"systemd": "-t cgroup -o none,name=systemd cgroup", "unified": "-t cgroup2 cgroup2"}
_OF_CPUSET = ("cpuset.cpus", "cpuset.mems")


def hierarchies() -> dict[str, str]:
    """Return how mount(8) mounts each hierarchy of cgroup v1, by its directory below /sys/fs/cgroup.

    Raises NodeError on cgroup v2.
    """
    if (_CGROUPS / "cgroup.controllers").exists():
        raise NodeError("make a root of control groups: this is known for cgroup v1 only")
    names = sorted(path.name for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())
    return {name: _UNUSUAL.get(name, f"-t cgroup -o {name} cgroup") for name in names}


def join(group: str) -> None:
    """Move this process into a group of every hierarchy; create the group, and those above it, if they are missing."""
    for hierarchy in hierarchies():
        path = _CGROUPS / hierarchy
        for name in filter(None, group.split("/")):
            path /= name
            path.mkdir(exist_ok=True)
            _fill(path)
        (path / "cgroup.procs").write_text(str(os.getpid()))


def _fill(group: Path) -> None:
    """Copy CPUs and memory nodes of the parent to a new cpuset: without them no process can join it."""
    for name in _OF_CPUSET:
        if (group / name).exists() and not (group / name).read_text().strip():
            (group / name).write_text((group.parent / name).read_text())


def _become_root() -> None:
    """Make this process's groups the roots of a namespace, and mount the hierarchies as seen from there."""
    mounted = hierarchies()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWCGROUP | _NEWNS) != 0:
        raise NodeError(f"create a namespace of control groups: {os.strerror(ctypes.get_errno())}")
    # The mounts of the outer namespaces stay: these are copies.
    _mount("--make-rprivate", "/")
    while mounts_below(Path("/sys")):  # isolation has mounted a second one over the machine's
        run(["umount", "--recursive", "--lazy", "/sys"], timeout=_MOUNT_SECONDS)
    _mount("-t", "sysfs", "sysfs", "/sys")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(_CGROUPS))
    for name, options in mounted.items():
        (_CGROUPS / name).mkdir()
        _mount(*options.split(), str(_CGROUPS / name))
    _mount("--make-rshared", "/")


def _mount(*arguments: str) -> None:
    run(["mount", *arguments], timeout=_MOUNT_SECONDS)


def main(command: Sequence[str]) -> None:
    """Replace this process by the command; the run's control group becomes its root."""
    node = this_node()
    if node is None:
        raise NodeError("make a root of control groups: only in isolation")
    join(f"{node.cgroup_parent}/root")
    _become_root()
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    main(sys.argv[1:])
