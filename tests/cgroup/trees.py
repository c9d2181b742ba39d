"""Groups over the files in tests/cgroup/data: a pod's, and that of its container."""

from pathlib import Path

from shim.cgroup.places import Group
from shim.cgroup.v1 import GroupV1
from shim.cgroup.v2 import GroupV2

DATA = Path(__file__).parent / "data"
POD_V1 = "kubepods/burstable/pod11111111"
POD_V2 = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111.slice"


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


def container_groups() -> list[Group]:
    return [group_v1(), group_v2()]


def pod_group(container: Group) -> Group:
    return group_v1(POD_V1) if isinstance(container, GroupV1) else group_v2(POD_V2)
