"""Limits of containers, as the kernel has them."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.cri import Cri
from integration.pods.kubelet import Kubelet, Pod, failure, pid_of
from shim.api.v1 import api_pb2 as pb

MIB = 1 << 20
LIMITS = pb.LinuxContainerResources(
    cpu_period=50_000,
    cpu_quota=25_000,
    cpu_shares=512,
    memory_limit_in_bytes=64 * MIB,
    cpuset_cpus="0",
    cpuset_mems="0",
)
V1_FILES = {
    "cpu/cpu.cfs_period_us": "50000",
    "cpu/cpu.cfs_quota_us": "25000",
    "cpu/cpu.shares": "512",
    "cpuset/cpuset.cpus": "0",
    "memory/memory.limit_in_bytes": str(64 * MIB),
}
V2_FILES = {
    "cpu.max": "25000 50000",
    "cpuset.cpus": "0",
    "memory.max": str(64 * MIB),
}


def cgroup_files(served: Served, container: str) -> dict[str, str]:
    """What the kernel has in the files of V1_FILES or V2_FILES for a container."""
    parent = served.engine.cgroup_parent.strip("/")
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        paths = {name: root / parent / container / name for name in V2_FILES}
    else:
        paths = {name: root / name.split("/")[0] / parent / container / name.split("/")[1] for name in V1_FILES}
    return {name: path.read_text().strip() for name, path in paths.items()}


def expected(**changed: str) -> dict[str, str]:
    files = V2_FILES if Path("/sys/fs/cgroup/cgroup.controllers").exists() else V1_FILES
    return files | changed


def test_limits_are_in_the_kernel(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=LIMITS))

    assert cgroup_files(served, container) == expected()
    told = kubelet.cri.container_status(container).resources.linux
    assert (told.cpu_period, told.cpu_quota, told.cpu_shares) == (50_000, 25_000, 512)
    assert (told.memory_limit_in_bytes, told.cpuset_cpus) == (64 * MIB, "0")


def update(cri: Cri, container: str, **fields: Any) -> None:
    linux = pb.LinuxContainerResources(**fields)
    cri.runtime.UpdateContainerResources(pb.UpdateContainerResourcesRequest(container_id=container, linux=linux))


@pytest.mark.parametrize("started", [True, False], ids=["running", "created"])
def test_limits_can_be_changed(kubelet: Kubelet, pod: Pod, served: Served, started: bool) -> None:
    container = kubelet.created(pod)
    if started:
        kubelet.cri.start(container)
    update(kubelet.cri, container, **{field.name: value for field, value in LIMITS.ListFields()})
    if not started:
        kubelet.cri.start(container)

    assert cgroup_files(served, container) == expected()
    assert kubelet.cri.container_status(container).resources.linux.memory_limit_in_bytes == 64 * MIB


def test_what_an_update_leaves_out_stays(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=LIMITS))

    update(kubelet.cri, container, cpu_shares=1024)

    changed = {} if "cpu.max" in expected() else {"cpu/cpu.shares": "1024"}
    assert cgroup_files(served, container) == expected(**changed)


def test_a_memory_limit_below_dockers_least_is_kept(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=4 * MIB)
    container = kubelet.started(pod, linux=pb.LinuxContainerConfig(resources=limit))

    files = cgroup_files(served, container)
    assert files.get("memory.max", files.get("memory/memory.limit_in_bytes")) == str(4 * MIB)


def test_what_has_ended_cannot_be_changed(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    kubelet.cri.stop_container(container)

    with pytest.raises(grpc.RpcError) as refusal:
        update(kubelet.cri, container, cpu_shares=1024)

    assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_a_lower_oom_score_than_this_machine_allows_does_not_fail(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(
        pod, linux=pb.LinuxContainerConfig(resources=pb.LinuxContainerResources(oom_score_adj=-997))
    )

    pid = pid_of(served, container)
    floor = int(Path(f"/proc/{served.engine.daemon.pid}/oom_score_adj").read_text())
    assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) in {-997, floor}
