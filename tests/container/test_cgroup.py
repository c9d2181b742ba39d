import os

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.cgroup import apply_writes, extra_writes
from shim.errors import FailedPrecondition, InvalidArgument

Resources = pb.LinuxContainerResources


def writes(resources: Resources, version: str) -> dict[tuple[str, str], str]:
    return extra_writes(resources, field="linux", version=version)


def test_unified_keys_are_files_of_cgroup_v2() -> None:
    resources = Resources(unified={"memory.oom.group": "1", "memory.swap.max": "0"})
    assert writes(resources, "2") == {("memory", "memory.oom.group"): "1", ("memory", "memory.swap.max"): "0"}
    with pytest.raises(InvalidArgument, match=r"linux\.unified needs cgroup v2"):
        writes(resources, "1")


@pytest.mark.parametrize("key", ["../cgroup.procs", "memory/max", "memory..max", "", "memory", "Memory.max", "a.b\n"])
def test_a_key_that_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match=r"linux\.unified: .* is no cgroup file"):
        writes(Resources(unified={key: "1"}), "2")


def test_huge_pages() -> None:
    resources = Resources(
        hugepage_limits=[pb.HugepageLimit(page_size="2MB", limit=4 << 20), pb.HugepageLimit(page_size="1GB", limit=0)]
    )
    assert writes(resources, "1") == {("hugetlb", "hugetlb.2MB.limit_in_bytes"): "4194304"}
    assert writes(resources, "2") == {("hugetlb", "hugetlb.2MB.max"): "4194304"}
    with pytest.raises(InvalidArgument, match="page size"):
        writes(Resources(hugepage_limits=[pb.HugepageLimit(page_size="../x", limit=1)]), "2")


def test_memory_below_dockers_minimum() -> None:
    resources = Resources(memory_limit_in_bytes=1 << 20)
    assert writes(resources, "1") == {("memory", "memory.limit_in_bytes"): "1048576"}
    assert writes(resources, "2") == {("memory", "memory.max"): "1048576"}
    assert writes(Resources(memory_limit_in_bytes=64 << 20), "2") == {}


def test_a_file_the_kernel_does_not_have_is_named() -> None:
    with pytest.raises(
        FailedPrecondition, match=r"set memory\.no_such=1 for container c1: /.*/memory\.no_such: No such"
    ):
        apply_writes({("memory", "memory.no_such"): "1"}, pid=os.getpid(), container_id="c1")
