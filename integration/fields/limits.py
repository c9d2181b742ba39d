"""Limits of containers in the kernel: the content of the control group's files for each field of the CRI."""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.conftest import Served
from integration.cri import Cri
from shim.api.v1 import api_pb2 as pb
from shim.cgroup.shares import may_become

MIB = 1 << 20
ROOT = Path("/sys/fs/cgroup")
V2 = (ROOT / "cgroup.controllers").exists()
NONE = "max" if V2 else "9223372036854771712"
"""How the kernel writes "no memory limit"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A field of the request, which the status reports unchanged, and the resulting content of the kernel's files."""

    asked: dict[str, Any]
    v1: dict[str, str]
    v2: dict[str, str | Callable[[str], bool]]
    """The expected text, or a predicate on it."""

    @property
    def files(self) -> Iterable[str]:
        """The files of this machine's cgroup version."""
        return self.v2 if V2 else self.v1

    def differing(self, found: dict[str, str]) -> dict[str, str]:
        """Return the files of `found` with unexpected content."""
        wanted = self.v2 if V2 else self.v1
        return {name: text for name, text in found.items() if not _holds(wanted[name], text)}


def _holds(wanted: str | Callable[[str], bool], text: str) -> bool:
    return text == wanted if isinstance(wanted, str) else wanted(text)


CASES = {
    "cpu period": Case(
        asked={"cpu_period": 50_000, "cpu_quota": 30_000},
        v1={"cpu.cfs_period_us": "50000", "cpu.cfs_quota_us": "30000"},
        v2={"cpu.max": "30000 50000"},
    ),
    "cpu quota": Case(
        asked={"cpu_quota": 25_000},
        v1={"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000"},
        v2={"cpu.max": "25000 100000"},
    ),
    "no cpu quota": Case(asked={"cpu_quota": -1}, v1={"cpu.cfs_quota_us": "-1"}, v2={"cpu.max": "max 100000"}),
    "cpu shares": Case(
        asked={"cpu_shares": 512},
        v1={"cpu.shares": "512"},
        v2={"cpu.weight": lambda text: may_become(512, weight=int(text))},
    ),
    "cpus": Case(asked={"cpuset_cpus": "0"}, v1={"cpuset.cpus": "0"}, v2={"cpuset.cpus": "0"}),
    "memory nodes": Case(asked={"cpuset_mems": "0"}, v1={"cpuset.mems": "0"}, v2={"cpuset.mems": "0"}),
    "memory": Case(
        asked={"memory_limit_in_bytes": 64 * MIB},
        v1={"memory.limit_in_bytes": str(64 * MIB), "memory.memsw.limit_in_bytes": str(64 * MIB)},
        v2={"memory.max": str(64 * MIB), "memory.swap.max": "0"},
    ),
    "memory in no whole pages": Case(
        asked={"memory_limit_in_bytes": 100_000_000},
        v1={"memory.limit_in_bytes": "99999744"},
        v2={"memory.max": "99999744"},
    ),
    "memory below Docker's least": Case(
        asked={"memory_limit_in_bytes": 4 * MIB},
        v1={"memory.limit_in_bytes": str(4 * MIB), "memory.memsw.limit_in_bytes": str(4 * MIB)},
        v2={"memory.max": str(4 * MIB), "memory.swap.max": "0"},
    ),
    "swap": Case(
        asked={"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": 96 * MIB},
        v1={"memory.limit_in_bytes": str(64 * MIB), "memory.memsw.limit_in_bytes": str(96 * MIB)},
        v2={"memory.max": str(64 * MIB), "memory.swap.max": str(32 * MIB)},
    ),
    "any swap": Case(
        asked={"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": -1},
        v1={"memory.limit_in_bytes": str(64 * MIB), "memory.memsw.limit_in_bytes": NONE},
        v2={"memory.max": str(64 * MIB), "memory.swap.max": "max"},
    ),
    "swap below Docker's least": Case(
        asked={"memory_limit_in_bytes": 4 * MIB, "memory_swap_limit_in_bytes": 5 * MIB},
        v1={"memory.limit_in_bytes": str(4 * MIB), "memory.memsw.limit_in_bytes": str(5 * MIB)},
        v2={"memory.max": str(4 * MIB), "memory.swap.max": str(MIB)},
    ),
}
"""Limits that can be set at create and changed later."""

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "cpu quota": ({"cpu_quota": -2}, "cpu_quota -2"),
    "cpu period": ({"cpu_period": 999}, "cpu_period 999"),
    "cpu shares": ({"cpu_shares": 1}, "cpu_shares 1"),
    "cpus": ({"cpuset_cpus": "first"}, "cpuset_cpus 'first'"),
    "cpus this machine does not have": ({"cpuset_cpus": "8000"}, "8000"),
    "memory nodes": ({"cpuset_mems": "1-0"}, "cpuset_mems: 1-0"),
    "memory": ({"memory_limit_in_bytes": -2}, "memory_limit_in_bytes -2"),
    "swap below memory": (
        {"memory_limit_in_bytes": 64 * MIB, "memory_swap_limit_in_bytes": 32 * MIB},
        "memory_swap_limit_in_bytes 33554432 is less than memory_limit_in_bytes",
    ),
    "oom score": ({"oom_score_adj": 1001}, "oom_score_adj 1001"),
    "huge pages": ({"hugepage_limits": [pb.HugepageLimit(page_size="some")]}, "hugepage_limits[0].page_size 'some'"),
    "no tasks": ({"unified": {"pids.max": "0"}}, "unified['pids.max']"),
    "more tasks than there can be": ({"unified": {"pids.max": "4194305"}}, "unified['pids.max']"),
    "what is no limit": ({"unified": {"memory.reclaim": "1"}}, "'memory.reclaim'"),
    "a path": ({"unified": {"../x": "1"}}, "unified: '../x'"),
    "a path below": ({"unified": {"a/b": "1"}}, "unified: 'a/b'"),
    "an empty key": ({"unified": {"": "1"}}, "unified: ''"),
    "a NUL": ({"unified": {"memory.high\0": "1"}}, "unified key holds a NUL"),
    "10,000 keys": ({"unified": {f"memory.x{number}": "1" for number in range(10_000)}}, "unified has 10000 keys"),
    "what moves processes": ({"unified": {"cgroup.procs": "1"}}, "'cgroup.procs'"),
}
"""Limits that are refused with InvalidArgument, and the text that follows the field's path in the message."""
if not V2:
    REFUSED["unified"] = ({"unified": {"memory.high": "1048576"}}, "unified needs cgroup v2")


def path_of(served: Served, container: str, name: str) -> Path:
    """Return a file of a container's control group, from the tree that has it."""
    group = served.engine.cgroup_of(container).strip("/")
    found = [*ROOT.glob(f"{group}/{name}"), *ROOT.glob(f"*/{group}/{name}")]
    return found[0]


def huge_page_files(served: Served, container: str) -> list[Path]:
    """Return the files that limit huge pages of 2 MiB: use and, where the kernel limits them, reservations."""
    group = served.engine.cgroup_of(container).strip("/")
    names = ("limit_in_bytes", "rsvd.limit_in_bytes", "max", "rsvd.max")
    patterns = [f"{tree}{group}/hugetlb.2MB.{name}" for name in names for tree in ("", "*/")]
    return [path for pattern in patterns for path in ROOT.glob(pattern)]


def kernel(served: Served, container: str, names: Iterable[str]) -> dict[str, str]:
    """Read these files of a container's control group."""
    return {name: path_of(served, container, name).read_text().strip() for name in names}


def reported(cri: Cri, container: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return these fields of ContainerStatus."""
    linux = cri.container_status(container).resources.linux
    return {name: getattr(linux, name) for name in names}


def update(cri: Cri, container: str, **fields: Any) -> None:
    """Change these fields of a container."""
    linux = pb.LinuxContainerResources(**fields)
    cri.runtime.UpdateContainerResources(pb.UpdateContainerResourcesRequest(container_id=container, linux=linux))


def limited(**fields: Any) -> pb.LinuxContainerConfig:
    """Return the field `linux` of a container with these limits."""
    return pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(**fields))


@contextmanager
def limited_huge_pages(served: Served) -> Iterator[bool]:
    """Enable limits of huge pages for container groups inside the block; yields False where the kernel cannot.

    On a hybrid machine the controller is in the version 2 tree, where it is not enabled for the groups below.
    """
    tree = ROOT / "unified"
    if V2 or (ROOT / "hugetlb").exists():
        yield V2 or any((ROOT / "hugetlb").glob("hugetlb.2MB.*"))
        return
    parent = tree / served.engine.cgroup_below().strip("/")
    if "hugetlb" not in (tree / "cgroup.controllers").read_text() or not parent.exists():
        yield False
        return
    with _locked(tree):  # tests of other engines use the machine's tree at the same time
        for group in (tree, parent):
            (group / "cgroup.subtree_control").write_text("+hugetlb")
        try:
            yield True
        finally:
            for group in (parent, tree):
                (group / "cgroup.subtree_control").write_text("-hugetlb")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, which processes of other engines' tests take too."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
