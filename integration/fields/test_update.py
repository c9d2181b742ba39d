"""UpdateContainerResources of created, running and paused containers changes all requested limits or none."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.fields.limits import (
    CASES,
    MIB,
    NONE,
    REFUSED,
    V2,
    Case,
    huge_page_files,
    kernel,
    limited,
    limited_huge_pages,
    reported,
    update,
)
from integration.node.commands import run
from integration.node.mounts import unmount_all
from integration.pods.kubelet import Kubelet, Pod, failure
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

ALL = {
    "cpu_period": 50_000,
    "cpu_quota": 25_000,
    "cpu_shares": 512,
    "memory_limit_in_bytes": 64 * MIB,
    "memory_swap_limit_in_bytes": 64 * MIB,
    "cpuset_cpus": "0",
    "cpuset_mems": "0",
}
MEMORY = {"memory.max": str(64 * MIB)} if V2 else {"memory.limit_in_bytes": str(64 * MIB)}


@contextmanager
def in_state(kubelet: Kubelet, pod: Pod, served: Served, state: str, **fields: Any) -> Iterator[str]:
    """Make a container in state created, running or paused; it runs when the block ends."""
    container = kubelet.created(pod, linux=limited(**fields))
    if state != "created":
        kubelet.cri.start(container)
    if state == "paused":
        served.engine.api.pause(container)
    yield container
    if state == "created":
        kubelet.cri.start(container)
    elif state == "paused":
        served.engine.api.unpause(container)


@pytest.mark.parametrize("state", ["created", "running", "paused"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_limit_can_be_changed(kubelet: Kubelet, pod: Pod, served: Served, case: Case, state: str) -> None:
    with in_state(kubelet, pod, served, state) as container:
        update(kubelet.cri, container, **case.asked)
        if state != "created":
            assert case.differing(kernel(served, container, case.files)) == {}
        assert reported(kubelet.cri, container, case.asked) == case.asked

    assert case.differing(kernel(served, container, case.files)) == {}
    assert reported(kubelet.cri, container, case.asked) == case.asked


def test_limits_that_an_update_leaves_out_stay(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, linux=limited(**ALL))

    update(kubelet.cri, container, cpu_shares=1024)

    assert reported(kubelet.cri, container, ALL) == ALL | {"cpu_shares": 1024}


@pytest.mark.parametrize("state", ["created", "running"])
def test_a_memory_limit_can_cross_dockers_minimum_in_both_directions(
    kubelet: Kubelet, pod: Pod, served: Served, state: str
) -> None:
    name = next(iter(MEMORY))
    with in_state(kubelet, pod, served, state, memory_limit_in_bytes=4 * MIB) as container:
        for size in (5 * MIB, 64 * MIB, 3 * MIB, 8 * MIB):
            update(kubelet.cri, container, memory_limit_in_bytes=size)
            # Another update makes Docker write the limits that it knows again.
            update(kubelet.cri, container, cpu_shares=512)
            assert reported(kubelet.cri, container, {"memory_limit_in_bytes": 0}) == {"memory_limit_in_bytes": size}
            if state == "running":
                assert kernel(served, container, {name: ""}) == {name: str(size)}
    assert kernel(served, container, {name: ""}) == {name: str(8 * MIB)}


@pytest.mark.parametrize("state", ["created", "running"])
def test_limits_can_be_lifted(kubelet: Kubelet, pod: Pod, served: Served, state: str) -> None:
    with in_state(kubelet, pod, served, state, **ALL) as container:
        update(kubelet.cri, container, memory_limit_in_bytes=-1, cpu_quota=-1)
        assert reported(kubelet.cri, container, {"memory_limit_in_bytes": 0, "cpu_quota": 0}) == {
            "memory_limit_in_bytes": 0,
            "cpu_quota": -1,
        }
    files = ["memory.max", "memory.swap.max"] if V2 else ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    assert kernel(served, container, dict.fromkeys(files, "")) == dict.fromkeys(files, NONE)
    update(kubelet.cri, container, memory_limit_in_bytes=64 * MIB)
    assert kernel(served, container, MEMORY) == MEMORY


@pytest.mark.parametrize(("asked", "named"), REFUSED.values(), ids=REFUSED)
def test_an_update_with_an_impossible_limit_changes_nothing(
    kubelet: Kubelet, pod: Pod, asked: dict[str, Any], named: str
) -> None:
    container = kubelet.started(pod, linux=limited(**ALL))
    before = kubelet.cri.container_status(container)

    with pytest.raises(grpc.RpcError) as refusal:
        update(kubelet.cri, container, **{"cpu_shares": 300} | asked)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert named in message
    assert kubelet.cri.container_status(container) == before


def test_a_memory_limit_below_usage_is_refused(kubelet: Kubelet) -> None:
    # Without a second copy in memory, for which the limit may have no room.
    fill = "head -c 33554432 /dev/zero > /dev/shm/new && mv /dev/shm/new /dev/shm/held; exec sleep 3600"
    container = kubelet.started(kubelet.pod(), "sh", "-c", fill, linux=limited(**ALL))
    wait_until(lambda: "held" in kubelet.inside(container, "ls /dev/shm"))
    before = kubelet.cri.container_status(container)

    with pytest.raises(grpc.RpcError) as refusal:
        update(kubelet.cri, container, memory_limit_in_bytes=16 * MIB, cpu_shares=300)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert f"linux.memory_limit_in_bytes {16 * MIB} is less than the" in message
    assert kubelet.cri.container_status(container) == before


def test_an_update_with_windows_limits_changes_nothing(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, linux=limited(**ALL))
    request = pb.UpdateContainerResourcesRequest(
        container_id=container,
        linux=pb.LinuxContainerResources(cpu_shares=300),
        windows=pb.WindowsContainerResources(cpu_shares=1),
    )

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.runtime.UpdateContainerResources(request)

    assert failure(refusal)[0] == grpc.StatusCode.INVALID_ARGUMENT
    assert "windows.cpu_shares" in failure(refusal)[1]
    assert reported(kubelet.cri, container, ALL) == ALL


def test_annotations_of_an_update_are_ignored(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, linux=limited(**ALL))
    linux = pb.LinuxContainerResources(cpu_shares=300)

    kubelet.cri.runtime.UpdateContainerResources(
        pb.UpdateContainerResourcesRequest(container_id=container, linux=linux, annotations={"a": "b"})
    )

    assert reported(kubelet.cri, container, ALL) == ALL | {"cpu_shares": 300}
    assert dict(kubelet.cri.container_status(container).annotations) == {}


def test_limits_of_an_exited_container_cannot_be_changed(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    kubelet.cri.stop_container(container)

    with pytest.raises(grpc.RpcError) as refusal:
        update(kubelet.cri, container, cpu_shares=1024)

    assert failure(refusal)[0] == grpc.StatusCode.FAILED_PRECONDITION


def test_limits_of_an_unknown_container_cannot_be_changed(kubelet: Kubelet) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        update(kubelet.cri, "f" * 64, cpu_shares=1024)

    assert failure(refusal)[0] == grpc.StatusCode.NOT_FOUND


def test_a_failed_write_rolls_the_update_back(kubelet: Kubelet, served: Served) -> None:
    """Docker has applied its part by then."""
    with limited_huge_pages(served) as there:
        if not there:
            pytest.skip("this kernel does not limit huge pages of 2 MiB")
        none = [pb.HugepageLimit(page_size="2MB", limit=0)]
        container = kubelet.started(kubelet.pod(), linux=limited(**ALL, hugepage_limits=none))
        before = kubelet.cri.container_status(container)
        docker = served.engine.api.inspect_container(container)["HostConfig"]
        with writes_fail(huge_page_files(served, container)[0]), pytest.raises(grpc.RpcError) as failed:
            update(
                kubelet.cri,
                container,
                cpu_quota=10_000,
                cpu_shares=300,
                memory_limit_in_bytes=32 * MIB,
                hugepage_limits=[pb.HugepageLimit(page_size="2MB", limit=4 * MIB)],
            )
        code, message = failure(failed)
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert "linux.hugepage_limits[2MB]" in message
        assert "no space left on device" in message
        assert kubelet.cri.container_status(container) == before
        assert kernel(served, container, MEMORY) == MEMORY
        assert served.engine.api.inspect_container(container)["HostConfig"] == docker
        kubelet.remove_all()


@contextmanager
def writes_fail(path: Path) -> Iterator[None]:
    """Make every write to a file fail inside the block."""
    run(["mount", "--bind", "/dev/full", path], timeout=10)
    try:
        yield
    finally:
        unmount_all(path)


def test_concurrent_updates_are_applied_one_after_another(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    sizes = [(3 + number % 6) * MIB for number in range(12)]

    def change(size: int) -> None:
        update(kubelet.cri, container, memory_limit_in_bytes=size, cpu_quota=size // 100)

    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(change, sizes))

    actual = reported(kubelet.cri, container, {"memory_limit_in_bytes": 0, "cpu_quota": 0})
    assert actual["cpu_quota"] == actual["memory_limit_in_bytes"] // 100
    assert actual["memory_limit_in_bytes"] in sizes


def test_limits_that_docker_cannot_store_survive_a_restart_of_the_server(
    kubelet: Kubelet, pod: Pod, served: Served
) -> None:
    running = kubelet.started(pod)
    waiting = kubelet.created(pod, linux=limited(memory_limit_in_bytes=64 * MIB))
    for container in (running, waiting):
        update(kubelet.cri, container, memory_limit_in_bytes=4 * MIB)
    removed = kubelet.created(pod)
    update(kubelet.cri, removed, memory_limit_in_bytes=4 * MIB)

    served.server.kill()
    served.engine.api.remove_container(removed)
    served.restart()

    kubelet.cri.start(waiting)
    update(kubelet.cri, running, cpu_shares=512)
    name = next(iter(MEMORY))
    for container in (running, waiting):
        assert kernel(served, container, {name: ""}) == {name: str(4 * MIB)}
    assert {path.stem for path in (served.dirs.state / "limits").iterdir()} == {running, waiting}
    for container in (running, waiting):
        kubelet.cri.remove_container(container)
    assert list((served.dirs.state / "limits").iterdir()) == []


def test_resources_of_a_pod_are_recorded(kubelet: Kubelet, served: Served) -> None:
    first = pb.LinuxContainerResources(memory_limit_in_bytes=64 * MIB)
    linux = pb.LinuxPodSandboxConfig(overhead=pb.LinuxContainerResources(cpu_shares=10), resources=first)
    pod = kubelet.pod(linux=linux)
    assert recorded(kubelet, pod) == {
        "overhead": {"cpu_shares": "10"},
        "resources": {"memory_limit_in_bytes": "67108864"},
    }

    kubelet.cri.runtime.UpdatePodSandboxResources(
        pb.UpdatePodSandboxResourcesRequest(
            pod_sandbox_id=pod.id,
            overhead=pb.LinuxContainerResources(cpu_shares=20),
            resources=pb.LinuxContainerResources(memory_limit_in_bytes=128 * MIB),
        )
    )
    served.server.stop()
    served.restart()

    changed = {"overhead": {"cpu_shares": "20"}, "resources": {"memory_limit_in_bytes": "134217728"}}
    assert recorded(kubelet, pod) == changed


def recorded(kubelet: Kubelet, pod: Pod) -> dict[str, Any]:
    """Return overhead and resources from the verbose status of a pod."""
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
    info = json.loads(kubelet.cri.runtime.PodSandboxStatus(request).info["info"])
    return {name: info[name] for name in ("overhead", "resources")}


def test_an_update_of_an_unknown_pod_is_not_found(kubelet: Kubelet) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.cri.runtime.UpdatePodSandboxResources(pb.UpdatePodSandboxResourcesRequest(pod_sandbox_id="f" * 64))

    assert failure(refusal)[0] == grpc.StatusCode.NOT_FOUND


@pytest.mark.skipif(not V2, reason="files of cgroup v2")
def test_unified_files_are_written_again_after_each_update(kubelet: Kubelet, pod: Pod, served: Served) -> None:
    container = kubelet.started(pod, linux=limited(unified={"memory.oom.group": "1"}))
    update(kubelet.cri, container, unified={"memory.high": str(32 * MIB), "memory.swap.max": "4096"})
    update(kubelet.cri, container, memory_limit_in_bytes=64 * MIB)

    wanted = {"memory.oom.group": "1", "memory.high": str(32 * MIB), "memory.swap.max": "4096"}
    assert kernel(served, container, wanted) == wanted
