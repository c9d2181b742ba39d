import os
from dataclasses import replace
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cgroup.locator import Place
from shim.cgroup.places import Group
from shim.container.limits_in_force import limits_in_force
from shim.engine.answers import HostSettings
from shim.runtime import Runtime
from shim.view.records import ContainerRecord
from tests.cgroup.trees import new_group_v1, new_group_v2
from tests.facts import own_score
from tests.pods import created, ready_pod, running

MIB = 1 << 20
Resources = pb.LinuxContainerResources
LIMITED = HostSettings(
    cpu_period=50_000, cpu_quota=25_000, cpu_shares=512, memory=64 * MIB, memory_swap=64 * MIB, cpuset_cpus="0,1"
)


def record_of(rt: Runtime, group: Group | None = None, *, host: HostSettings = LIMITED) -> ContainerRecord:
    """A running container whose first process is this process."""
    record = replace(rt.view.container(running(rt, ready_pod(rt))), host=host)
    record = replace(record, state=replace(record.state, pid=os.getpid()))
    if group is not None:
        rt.cgroups.remember(record.id, Place(os.getpid(), group, group))
    return record


def v1(rt: Runtime, root: Path, *, host: HostSettings = LIMITED, **files: str) -> Resources:
    record = record_of(rt, host=host)
    group = new_group_v1(root, record.id, **files)
    rt.cgroups.remember(record.id, Place(os.getpid(), group, group))
    return limits_in_force(rt, record)


def v2(rt: Runtime, root: Path, *, host: HostSettings = LIMITED, **files: str) -> Resources:
    record = record_of(rt, host=host)
    group = new_group_v2(root, record.id, **files)
    rt.cgroups.remember(record.id, Place(os.getpid(), group, group))
    return limits_in_force(rt, record)


def test_kernel_values_win_on_cgroup_v1(rt: Runtime, tmp_path: Path) -> None:
    reported = v1(
        rt,
        tmp_path,
        cpu__cfs_period_us="50000",
        cpu__cfs_quota_us="10000",
        cpu__shares="300",
        memory__limit_in_bytes=str(32 * MIB),
        memory__memsw__limit_in_bytes=str(40 * MIB),
    )
    assert reported == Resources(
        cpu_period=50_000,
        cpu_quota=10_000,
        cpu_shares=300,
        cpuset_cpus="0,1",
        cpuset_mems="0",
        memory_limit_in_bytes=32 * MIB,
        memory_swap_limit_in_bytes=40 * MIB,
        oom_score_adj=own_score(),
    )


def test_kernel_values_win_on_cgroup_v2(rt: Runtime, tmp_path: Path) -> None:
    reported = v2(
        rt,
        tmp_path,
        cpu__max="10000 50000",
        cpu__weight="500",
        cpuset__cpus="1",
        memory__max=str(32 * MIB),
        memory__swap__max=str(8 * MIB),
    )
    assert reported == Resources(
        cpu_period=50_000,
        cpu_quota=10_000,
        cpu_shares=13_085,
        cpuset_cpus="1",
        memory_limit_in_bytes=32 * MIB,
        memory_swap_limit_in_bytes=40 * MIB,
        oom_score_adj=own_score(),
    )


@pytest.mark.parametrize("weight", ["20", "59"], ids=["straight", "curved"])
def test_shares_are_reported_as_requested(rt: Runtime, tmp_path: Path, weight: str) -> None:
    assert v2(rt, tmp_path, cpu__weight=weight).cpu_shares == 512


def test_a_limit_rounded_to_pages_is_reported_as_requested(rt: Runtime, tmp_path: Path) -> None:
    host = HostSettings(memory=100_000_000, memory_swap=100_000_000)
    files = {"memory__limit_in_bytes": "99999744", "memory__memsw__limit_in_bytes": "99999744"}
    reported = v1(rt, tmp_path, host=host, **files)
    assert (reported.memory_limit_in_bytes, reported.memory_swap_limit_in_bytes) == (100_000_000, 100_000_000)


@pytest.mark.parametrize("version", [v1, v2], ids=["version 1", "version 2"])
def test_externally_lifted_limits_are_reported_as_unlimited(rt: Runtime, tmp_path: Path, version: object) -> None:
    assert callable(version)
    reported = version(rt, tmp_path)
    assert (reported.cpu_quota, reported.memory_limit_in_bytes, reported.memory_swap_limit_in_bytes) == (-1, -1, -1)


@pytest.mark.parametrize("version", [v1, v2], ids=["version 1", "version 2"])
def test_a_container_without_limits_reports_none(rt: Runtime, tmp_path: Path, version: object) -> None:
    assert callable(version)
    reported = version(rt, tmp_path, host=HostSettings())
    assert (reported.cpu_quota, reported.memory_limit_in_bytes, reported.memory_swap_limit_in_bytes) == (0, 0, 0)
    assert (reported.cpu_period, reported.cpu_shares) == (100_000, 1024)


def test_requested_cgroup_files_are_reported_with_the_kernels_values(rt: Runtime, tmp_path: Path) -> None:
    record = record_of(rt)
    asked = Resources(
        unified={"memory.high": "1M", "memory.oom.group": "1", "memory.low": "5"},
        hugepage_limits=[pb.HugepageLimit(page_size="2Mi", limit=1), pb.HugepageLimit(page_size="1GB", limit=0)],
    )
    rt.limits.put(record.id, asked)
    group = new_group_v2(tmp_path, record.id, memory__high="1048576", hugetlb__2MB__max="2097152")
    rt.cgroups.remember(record.id, Place(os.getpid(), group, group))
    reported = limits_in_force(rt, record)
    assert dict(reported.unified) == {"memory.high": "1048576", "memory.oom.group": "0", "memory.low": "5"}
    assert [(one.page_size, one.limit) for one in reported.hugepage_limits] == [("2MB", 2097152), ("1GB", 0)]


def test_a_created_container_reports_the_limits_it_will_get(rt: Runtime) -> None:
    asked = Resources(memory_limit_in_bytes=MIB, hugepage_limits=[pb.HugepageLimit(page_size="2MB")])
    linux = pb.LinuxContainerConfig(resources=asked)
    record = rt.view.container(created(rt, ready_pod(rt), linux=linux))
    reported = limits_in_force(rt, record)
    assert (reported.memory_limit_in_bytes, reported.memory_swap_limit_in_bytes) == (MIB, MIB)
    assert reported.hugepage_limits == asked.hugepage_limits


def test_dockers_limits_are_reported_if_the_cgroup_vanishes(rt: Runtime, tmp_path: Path) -> None:
    record = record_of(rt)
    docker = Resources(
        cpu_period=50_000,
        cpu_quota=25_000,
        cpu_shares=512,
        cpuset_cpus="0,1",
        memory_limit_in_bytes=64 * MIB,
        memory_swap_limit_in_bytes=64 * MIB,
    )
    assert limits_in_force(rt, record) == docker  # this process is not in the container's cgroup
    group = new_group_v2(tmp_path / "gone", record.id)
    rt.cgroups.remember(record.id, Place(os.getpid(), replace(group, directory=f"{tmp_path}/no/{record.id}"), group))
    docker.oom_score_adj = own_score()
    assert limits_in_force(rt, record) == docker
