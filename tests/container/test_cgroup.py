import os
from dataclasses import replace

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.places import Group
from shim.cgroup.v1 import GroupV1
from shim.cgroup.v2 import GroupV2
from shim.container.cgroup import check_unified_possible, group_to_write, writes_beyond_docker
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.runtime import Runtime
from tests.pods import created, ready_pod, running

Resources = pb.LinuxContainerResources
V1 = GroupV1(
    cpu_directory="/cpu", cpuacct="", memory_directory="/memory", pids_directory="", blkio="", hugetlb="/hugetlb"
)
V2 = GroupV2("/g")


def writes(resources: Resources, group: Group) -> list[tuple[str, str]]:
    return [(write.path, write.text) for write in writes_beyond_docker(resources, group, field="linux")]


def test_unified_keys_are_files_of_cgroup_v2() -> None:
    resources = Resources(unified={"memory.oom.group": "1"})
    assert writes(resources, V2) == [("/g/memory.oom.group", "1")]
    check_unified_possible(resources, field="linux", version="2")
    with pytest.raises(InvalidArgument, match=r"linux\.unified needs cgroup v2"):
        check_unified_possible(resources, field="linux", version="1")


def test_unified_keys_win_over_fields() -> None:
    resources = Resources(memory_limit_in_bytes=1 << 20, unified={"memory.max": "4096"})
    assert writes(resources, V2)[-1] == ("/g/memory.max", "4096")


def test_huge_page_limits_are_written_for_each_size() -> None:
    resources = Resources(
        hugepage_limits=[pb.HugepageLimit(page_size="2Mi", limit=4 << 20), pb.HugepageLimit(page_size="1GB", limit=0)]
    )
    assert writes(resources, V1) == [
        ("/hugetlb/hugetlb.2MB.limit_in_bytes", "4194304"),
        ("/hugetlb/hugetlb.2MB.rsvd.limit_in_bytes", "4194304"),
        ("/hugetlb/hugetlb.1GB.limit_in_bytes", "0"),
        ("/hugetlb/hugetlb.1GB.rsvd.limit_in_bytes", "0"),
    ]
    assert writes(resources, V2)[:2] == [("/g/hugetlb.2MB.max", "4194304"), ("/g/hugetlb.2MB.rsvd.max", "4194304")]
    needed = [write.path for write in writes_beyond_docker(resources, V2, field="linux") if not write.optional]
    assert needed == ["/g/hugetlb.2MB.max"]


def test_huge_page_limits_need_the_hugetlb_controller() -> None:
    bare = GroupV1(cpu_directory="", cpuacct="", memory_directory="/m", pids_directory="", blkio="", hugetlb="")
    assert writes(Resources(hugepage_limits=[pb.HugepageLimit(page_size="2MB", limit=0)]), bare) == []
    with pytest.raises(FailedPrecondition, match=r"linux\.hugepage_limits: this node does not limit huge pages"):
        writes(Resources(hugepage_limits=[pb.HugepageLimit(page_size="2MB", limit=1)]), bare)


@pytest.mark.parametrize(
    ("memory", "swap", "v1", "v2"),
    [
        (1 << 20, 0, ["1048576", "1048576"], ["1048576", "0"]),
        (1 << 20, 3 << 20, ["1048576", "3145728"], ["1048576", "2097152"]),
        (1 << 20, -1, ["1048576", "-1"], ["1048576", "max"]),
        (64 << 20, -1, ["-1"], ["max"]),
        (-1, -1, ["-1"], ["max"]),
        (64 << 20, 64 << 20, [], []),
        (0, 0, [], []),
    ],
    ids=["below 6 MiB", "with swap", "with any swap", "swap lifted", "both lifted", "Docker's own", "none"],
)
def test_memory_limits_that_docker_cannot_set_are_written(memory: int, swap: int, v1: list[str], v2: list[str]) -> None:
    resources = Resources(memory_limit_in_bytes=memory, memory_swap_limit_in_bytes=swap)
    assert [text for _, text in writes(resources, V1)] == v1
    assert [text for _, text in writes(resources, V2)] == v2


def test_limits_fail_for_a_process_outside_its_containers_cgroup(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Like in a sandboxed runtime: limits that Docker applies pass, limits that need writing are refused."""
    record = rt.view.container(running(rt, ready_pod(rt)))
    small = Resources(memory_limit_in_bytes=1 << 20)
    assert group_to_write(rt, record, resources=small) is None  # the process has ended
    monkeypatch.setattr("shim.container.cgroup.EXIT_SECONDS", 0.0)
    record = replace(record, state=replace(record.state, pid=os.getpid()))
    assert group_to_write(rt, record, resources=Resources(cpu_shares=5)) is None
    with pytest.raises(FailedPrecondition, match=rf"write limits of container {record.id}: process \d+ is in no"):
        group_to_write(rt, record, resources=small)


def test_a_zombie_counts_as_ended(rt: Runtime) -> None:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        record = rt.view.container(running(rt, ready_pod(rt)))
        record = replace(record, state=replace(record.state, pid=child))
        assert group_to_write(rt, record, resources=Resources(memory_limit_in_bytes=1 << 20)) is None
    finally:
        os.waitpid(child, 0)


def test_create_fails_for_cgroup_files_that_the_node_lacks(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rt.cgroups, "find", lambda _id, **_: V1)
    linux = pb.LinuxContainerConfig(
        resources=Resources(hugepage_limits=[pb.HugepageLimit(page_size="16MB", limit=16 << 20)])
    )
    with pytest.raises(
        FailedPrecondition, match=r"config\.linux\.resources\.hugepage_limits\[16MB\]: this node has no"
    ):
        created(rt, ready_pod(rt), linux=linux)
