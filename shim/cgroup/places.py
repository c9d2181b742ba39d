"""Finds the control groups of a process, on machines with version 1, version 2 or both (hybrid)."""

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
"""The key of the version 2 tree among the controllers, as in /proc/<pid>/cgroup."""


class Group(Protocol):
    """One control group. Each call reads the files again; a removed group answers None or an empty list."""

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
        """Return the peak, failures and the kernel's memory."""
        ...

    def pids(self) -> Pids | None:
        """Return the number of tasks and its limit."""
        ...

    def io_psi(self) -> Psi | None:
        """Return the pressure of block I/O."""
        ...

    def io(self) -> list[Io]:
        """Return block I/O by device."""
        ...

    def huge_pages(self) -> list[HugePages]:
        """Return huge pages by size; empty if the controller is off."""
        ...

    def process_ids(self) -> list[int]:
        """Return the processes of this group and its descendants, such as groups of systemd in a container."""
        ...

    def limits(self) -> Limits:
        """Return the limits of CPU and memory."""
        ...

    def limit_files(self) -> list[str]:
        """Return the paths of the files that an OCI runtime writes to change limits; some may be missing."""
        ...

    def cpuset(self) -> tuple[str, str]:
        """Return the CPUs and memory nodes in use, as they can be written; empty if unknown."""
        ...

    def memory_file(self, memory: int) -> tuple[str, str]:
        """Return the path and text of a memory limit: bytes or NO_LIMIT."""
        ...

    def swap_file(self, memory_swap: int, *, memory: int) -> tuple[str, str]:
        """Return the path and text of a limit of memory plus swap, given the limit of memory.

        A kernel without swap accounting lacks the file.
        """
        ...

    def huge_page_files(self, size: str) -> list[str]:
        """Return the paths of the limits of used and of reserved huge pages of a size; empty without a tree for them.

        Older kernels lack the second file.
        """
        ...

    def unified_file(self, key: str) -> str:
        """Return the path of a version 2 file by its name, which has been checked; empty for a group of version 1."""
        ...


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted tree: `root` is the group that is visible at `point` (field 4 of mountinfo, see proc(5))."""

    point: str
    root: str

    def directory(self, group: str) -> str:
        """Return the directory of a group that /proc/<pid>/cgroup names."""
        # Compare whole names: the group `/ab` is not below `/a`.
        inside = group.removeprefix(self.root) if f"{group}/".startswith(f"{self.root}/") else group
        return f"{self.point}/{inside.strip('/')}".rstrip("/")


Mounts = Mapping[str, Mount]
"""The trees by version 1 controller, and the version 2 tree under UNIFIED."""


def mounts_from_mountinfo(mountinfo: bytes) -> Mounts:
    """Return the mounted trees; the first mount of a tree counts."""
    found: dict[str, Mount] = {}
    for each in proc.mounts(mountinfo):
        if each.kind not in {b"cgroup", b"cgroup2"}:
            continue
        mount = Mount(point=each.point, root=each.root)
        for controller in _controllers(each.options) if each.kind == b"cgroup" else [UNIFIED]:
            found.setdefault(controller, mount)
    return found


def _controllers(options: Mapping[str, str]) -> list[str]:
    """Return the controllers among the mount options of a version 1 tree, or its name if it has no controllers."""
    return [f"{option}={value}" if value else option for option, value in options.items()]


def groups_from_proc(table: bytes) -> dict[str, str]:
    """Parse /proc/<pid>/cgroup: the group of the process by controller, and its version 2 group under UNIFIED."""
    found = {}
    for line in proc.lines(table):
        _, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        found.update(dict.fromkeys(proc.to_text(controllers).split(","), proc.to_text(path)))
    return found


def group_at(groups: Mapping[str, str], mounts: Mounts) -> Group:
    """Return the group with these paths, in the version that accounts for memory on this machine.

    Raise NotFound if no mounted tree accounts for the group's memory.
    """
    if "memory" in mounts and "memory" in groups:
        return _group_v1(groups, mounts)
    if UNIFIED in mounts and UNIFIED in groups:
        return GroupV2(mounts[UNIFIED].directory(groups[UNIFIED]))
    raise NotFound("no cgroup tree that counts memory is mounted")


def cut_behind(groups: Mapping[str, str], name: str) -> dict[str, str]:
    """Cut each path behind its first part that contains `name`; paths without `name` stay.

    The first process of a container may be in a subgroup, as systemd in a container is.
    """
    cut = {}
    for controller, path in groups.items():
        parts = path.split("/")
        ends = [number for number, part in enumerate(parts, 1) if name in part]
        cut[controller] = "/".join(parts[: ends[0]]) if ends else path
    return cut


def parents(groups: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of the parent groups: for a container's groups, the groups of its pod."""
    return {controller: path.rstrip("/").rpartition("/")[0] or "/" for controller, path in groups.items()}


def slice_path(name: str) -> str:
    """Return the path of a systemd slice: each dash in its name adds a level (systemd.slice(5))."""
    parts = name.removesuffix(".slice").split("-")
    return "".join(f"/{'-'.join(parts[:end])}.slice" for end in range(1, len(parts) + 1))


def this_machines_mounts() -> Mounts:
    """Return the trees that this process sees."""
    return mounts_from_mountinfo(Path("/proc/self/mountinfo").read_bytes())


def groups_of_process(pid: int) -> dict[str, str]:
    """Return the groups of a process. Raise NotFound if it has exited."""
    try:
        return groups_from_proc(Path(f"/proc/{pid}/cgroup").read_bytes())
    except OSError as error:
        raise NotFound(f"read the control groups of process {pid}: {reason_of(error)}") from error


def own_groups(pid: int, *, name: str, mounts: Mounts) -> dict[str, str]:
    """Return the paths of the groups made for a container, by its full id `name` and its first process `pid`.

    Leaves out a tree in which the process is in another group, which may be the root of the whole machine. Raise
    NotFound if the process has exited, or is not in the container's group in the tree that accounts for memory. An
    exiting process has left its version 1 groups, but not its version 2 group.
    """
    groups = cut_behind(groups_of_process(pid), name)
    own = {controller: path for controller, path in groups.items() if name in path}
    if ("memory" if "memory" in mounts else UNIFIED) not in own:
        raise NotFound(f"process {pid} is in no control group of container {name}")
    return own


def _group_v1(groups: Mapping[str, str], mounts: Mounts) -> GroupV1:
    def directory(controller: str) -> str:
        known = controller in groups and controller in mounts
        return mounts[controller].directory(groups[controller]) if known else ""

    # On a hybrid machine the unified tree counts only if it has a group of the same name. Otherwise the process is
    # in the root group, which reports the pressure of the whole machine.
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
