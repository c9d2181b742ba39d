"""Where the control groups of a process are, on machines with version 1, version 2 or both (hybrid)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shim.base import proc
from shim.cgroup.figures import Cpu, CpuTimes, HugePages, Io, Limits, Memory, MemoryHistory, Pids, Psi
from shim.cgroup.v1 import GroupV1
from shim.cgroup.v2 import GroupV2
from shim.domain.errors import NotFound, reason_of

UNIFIED = ""
"""Key of the version 2 tree among the controllers, as in /proc/<pid>/cgroup."""


class Group(Protocol):
    """One control group. Every answer is read again; None, or an empty list, once the group has gone."""

    def cpu(self) -> Cpu | None:
        """Return CPU time and pressure."""
        ...

    def cpu_times(self) -> CpuTimes:
        """Return user and system time, and throttling."""
        ...

    def memory(self) -> Memory | None:
        """Return memory and swap in use."""
        ...

    def memory_history(self) -> MemoryHistory:
        """Return peak, failures and what the kernel holds."""
        ...

    def pids(self) -> Pids | None:
        """Return tasks and their limit."""
        ...

    def io_psi(self) -> Psi | None:
        """Return the pressure of block I/O."""
        ...

    def io(self) -> list[Io]:
        """Return block I/O by device."""
        ...

    def huge_pages(self) -> list[HugePages]:
        """Return huge pages by size; empty where the controller is off."""
        ...

    def process_ids(self) -> list[int]:
        """Return the processes of this group and of those below it, such as systemd makes in a container."""
        ...

    def limits(self) -> Limits:
        """Return the limits of CPU and memory."""
        ...

    def limit_files(self) -> list[str]:
        """Return the paths of the files that an OCI runtime may write to change these, also of missing ones."""
        ...

    def cpuset(self) -> tuple[str, str]:
        """Return CPUs and memory nodes it runs on, in a form that can be set; empty for what is unknown."""
        ...

    def memory_file(self, memory: int) -> tuple[str, str]:
        """Return path and text for a limit of memory, bytes or NO_LIMIT."""
        ...

    def swap_file(self, memory_swap: int, *, memory: int) -> tuple[str, str]:
        """Return path and text for a limit of memory and swap together, beside one of memory.

        Not there on every kernel.
        """
        ...

    def huge_page_files(self, size: str) -> list[str]:
        """Return the paths of the limits of huge pages of a size, in use and reserved.

        Newer kernels alone have the second.

        Empty where no tree could have them.
        """
        ...

    def unified_file(self, key: str) -> str:
        """Return the path of a file of version 2 by its name; empty for a group of version 1.

        The name has been checked.
        """
        ...


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted tree: `root` is the group (proc(5): mountinfo, field 4) that is seen at `point`."""

    point: str
    root: str

    def directory(self, group: str) -> str:
        """Return the directory of a group as /proc/<pid>/cgroup names it."""
        # Whole names only: of the mounted part `/a`, the group `/ab` is no part.
        inside = group.removeprefix(self.root) if f"{group}/".startswith(f"{self.root}/") else group
        return f"{self.point}/{inside.strip('/')}".rstrip("/")


Mounts = Mapping[str, Mount]
"""Trees by controller of version 1; that of version 2 under UNIFIED."""


def mounts_from_mountinfo(mountinfo: bytes) -> Mounts:
    """Read which trees are mounted; of a tree that is mounted twice, the first place counts."""
    found: dict[str, Mount] = {}
    for each in proc.mounts(mountinfo):
        if each.kind not in {b"cgroup", b"cgroup2"}:
            continue
        mount = Mount(point=each.point, root=each.root)
        for controller in _controllers(each.options) if each.kind == b"cgroup" else [UNIFIED]:
            found.setdefault(controller, mount)
    return found


def _controllers(options: Mapping[str, str]) -> list[str]:
    """Return the controllers among the options of a tree of version 1; one without any has a name."""
    return [f"{option}={value}" if value else option for option, value in options.items()]


def groups_from_proc(table: bytes) -> dict[str, str]:
    """Read /proc/<pid>/cgroup: the group of the process by controller, that of version 2 under UNIFIED."""
    found = {}
    for line in proc.lines(table):
        _, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        found.update(dict.fromkeys(proc.to_text(controllers).split(","), proc.to_text(path)))
    return found


def group_at(groups: Mapping[str, str], mounts: Mounts) -> Group:
    """Return the group with these paths, of the version that counts memory on this machine.

    Raise NotFound when memory is not counted for it in any mounted tree.
    """
    if "memory" in mounts and "memory" in groups:
        return _group_v1(groups, mounts)
    if UNIFIED in mounts and UNIFIED in groups:
        return GroupV2(mounts[UNIFIED].directory(groups[UNIFIED]))
    raise NotFound("no cgroup tree that counts memory is mounted")


def belonging_to(groups: Mapping[str, str], name: str) -> dict[str, str]:
    """Cut paths behind the part that holds `name`; those without it stay.

    A container's first process may have moved into a group of its own below, as systemd in a container does.
    """
    cut = {}
    for controller, path in groups.items():
        parts = path.split("/")
        ends = [number for number, part in enumerate(parts, 1) if name in part]
        cut[controller] = "/".join(parts[: ends[0]]) if ends else path
    return cut


def above(groups: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of the groups around these: of a container's, the pod's."""
    return {controller: path.rstrip("/").rpartition("/")[0] or "/" for controller, path in groups.items()}


def slice_path(name: str) -> str:
    """Return the path of a systemd slice: each dash of its name is a level (systemd.slice(5))."""
    parts = name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[:end])}.slice" for end in range(1, len(parts) + 1))


def this_machines_mounts() -> Mounts:
    """Read which trees this process sees."""
    return mounts_from_mountinfo(Path("/proc/self/mountinfo").read_bytes())


def groups_of_process(pid: int) -> dict[str, str]:
    """Read the groups of a process. Raise NotFound when it has ended."""
    try:
        return groups_from_proc(Path(f"/proc/{pid}/cgroup").read_bytes())
    except OSError as error:
        raise NotFound(f"read the control groups of process {pid}: {reason_of(error)}") from error


def own_groups(pid: int, *, name: str, mounts: Mounts) -> dict[str, str]:
    """Return the paths of the group that was made for a container, `name` its full id, whose first process this is.

    A tree in which the process is elsewhere counts as not mounted: that group is not the container's, and may be the
    whole machine's. Raise NotFound when the process has ended, or is in no such group where memory is counted; one that
    is ending has left its groups of version 1, and not that of version 2.
    """
    groups = belonging_to(groups_of_process(pid), name)
    own = {controller: path for controller, path in groups.items() if name in path}
    if ("memory" if "memory" in mounts else UNIFIED) not in own:
        raise NotFound(f"process {pid} is in no control group of container {name}")
    return own


def _group_v1(groups: Mapping[str, str], mounts: Mounts) -> GroupV1:
    def directory(controller: str) -> str:
        known = controller in groups and controller in mounts
        return mounts[controller].directory(groups[controller]) if known else ""

    # The unified tree of a hybrid machine counts only where there is a group of the same name in it; else the
    # process is in its root, whose pressure is that of the whole machine.
    own = groups.get(UNIFIED, "/").rpartition("/")[2] == groups["memory"].rpartition("/")[2] != ""
    return GroupV1(
        cpu_directory=directory("cpu"),
        cpuacct=directory("cpuacct"),
        memory_directory=directory("memory"),
        pids_directory=directory("pids"),
        blkio=directory("blkio"),
        hugetlb=directory("hugetlb"),
        cpuset_directory=directory("cpuset"),
        unified=directory(UNIFIED) if own else "",
    )
