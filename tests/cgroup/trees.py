"""Control groups for tests: a recorded pod and its container in tests/cgroup/data, and new writable groups."""

from pathlib import Path

from shim.cgroup.places import Group
from shim.cgroup.v1 import GroupV1
from shim.cgroup.v2 import GroupV2

DATA = Path(__file__).parent / "data"
POD_V1 = "kubepods/burstable/pod11111111"
POD_V2 = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111.slice"
MOUNTINFO_V1 = b"""\
24 1 0:21 / /proc rw - proc proc rw
30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/memory rw,nosuid shared:10 - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:11 - cgroup cgroup rw,cpu,cpuacct
34 30 0:30 / /sys/fs/cgroup/pids rw,nosuid shared:12 - cgroup cgroup rw,pids
35 30 0:27 / /elsewhere rw,nosuid - cgroup2 cgroup2 rw
"""
MOUNTINFO_V2 = (
    b"30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
)
"""/proc/self/mountinfo of a hybrid machine and of a machine with version 2."""


def group_v1(path: str = f"{POD_V1}/cccccccccccc", *, root: Path = DATA / "v1") -> GroupV1:
    return GroupV1(
        cpu_directory=f"{root}/cpu/{path}",
        cpuacct=f"{root}/cpuacct/{path}",
        memory_directory=f"{root}/memory/{path}",
        pids_directory=f"{root}/pids/{path}",
        blkio=f"{root}/blkio/{path}",
        hugetlb="",
        unified=f"{root}/unified/{path}",
    )


def group_v2(path: str = f"{POD_V2}/docker-cccccccccccc.scope", *, root: Path = DATA / "v2") -> GroupV2:
    return GroupV2(f"{root}/{path}")


def pod_group(container: Group) -> Group:
    return group_v1(POD_V1) if isinstance(container, GroupV1) else group_v2(POD_V2)


V1_LIMITS = {
    "cpu/cpu.cfs_period_us": "100000",
    "cpu/cpu.cfs_quota_us": "-1",
    "cpu/cpu.shares": "1024",
    "cpuset/cpuset.cpus": "0-1",
    "cpuset/cpuset.mems": "0",
    "memory/memory.limit_in_bytes": "9223372036854771712",
    "memory/memory.memsw.limit_in_bytes": "9223372036854771712",
    "memory/memory.usage_in_bytes": "9000000",
    "memory/memory.stat": "total_inactive_file 1000000",
    "pids/pids.max": "max",
    "hugetlb/hugetlb.2MB.limit_in_bytes": "9223372036854771712",
    "hugetlb/hugetlb.2MB.rsvd.limit_in_bytes": "9223372036854771712",
}
V2_LIMITS = {
    "cpu.max": "max 100000",
    "cpu.weight": "100",
    "cpuset.cpus": "",
    "cpuset.cpus.effective": "0-1",
    "cpuset.mems": "",
    "cpuset.mems.effective": "0",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.high": "max",
    "memory.oom.group": "0",
    "memory.current": "9000000",
    "memory.stat": "inactive_file 1000000",
    "pids.max": "max",
    "hugetlb.2MB.max": "max",
    "hugetlb.2MB.rsvd.max": "max",
}
"""The kernel's defaults for a new group."""


def new_group_v1(root: Path, name: str, **changed: str) -> GroupV1:
    """Create a writable group below `root`; `changed` has the text of files, with `__` for a dot."""
    for path, text in (V1_LIMITS | _paths(changed, V1_LIMITS)).items():
        controller, _, file = path.partition("/")
        _write(root / controller / name / file, text)
    return GroupV1(
        cpu_directory=f"{root}/cpu/{name}",
        cpuacct=f"{root}/cpuacct/{name}",
        memory_directory=f"{root}/memory/{name}",
        pids_directory=f"{root}/pids/{name}",
        blkio=f"{root}/blkio/{name}",
        hugetlb=f"{root}/hugetlb/{name}",
        cpuset_directory=f"{root}/cpuset/{name}",
    )


def new_group_v2(root: Path, name: str, **changed: str) -> GroupV2:
    """Create a writable group below `root`; `changed` has the text of files, with `__` for a dot."""
    for file, text in (V2_LIMITS | _paths(changed, V2_LIMITS)).items():
        _write(root / name / file, text)
    return GroupV2(f"{root}/{name}")


def _paths(changed: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    names = {name.replace("__", "."): text for name, text in changed.items()}
    return {path: names[path.rpartition("/")[2]] for path in known if path.rpartition("/")[2] in names}


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
