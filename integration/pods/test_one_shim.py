"""The containers of a pod share a containerd-shim: its failure, and restarts of Docker and containerd.

Each container has a separate containerd-shim on engines that cannot share, under other runtimes, in shared PID
namespaces and beyond a number of containers; the behaviour tested here does not change.
"""

import json
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from docker.errors import APIError

from integration.conftest import Images, Served
from integration.node.engine import program
from integration.node.processes import command
from integration.pods.kubelet import Kubelet, Pod, in_context, in_namespaces, pid_of
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.spec.shim_group import MOST

MANY = 20
AT_ONCE = 5
CRI = "io.kubernetes.cri."
OTHER = "other"
"""A runtime that the administrator has added."""
_COMMAND = ("sh", "-c", "trap 'exit $CODE' TERM; sleep 3600 & wait")


@pytest.fixture(scope="module")
def lasting(served: Served) -> Iterator[Served]:
    """The shared server, on its engine with live-restore and an additional runtime."""
    runc = program("runc", served.engine.binaries)
    settings = {"live-restore": True, "shutdown-timeout": 1, "runtimes": {OTHER: {"path": str(runc)}}}
    with served.engine.configured(**settings):
        served.wait_answers()
        yield served
    served.wait_answers()


@pytest.fixture
def kubelet(lasting: Served, images: Images) -> Iterator[Kubelet]:
    before = lasting.snapshot()
    made = Kubelet(lasting.cri, images.busybox)
    yield made
    made.remove_all()
    assert lasting.snapshot() == before


def shim_of(served: Served, container_id: str) -> int:
    """Return the containerd-shim of a container: the parent of its first process."""
    status = Path(f"/proc/{pid_of(served, container_id)}/status").read_text().splitlines()
    parent = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
    assert b"containerd-shim" in command(parent)
    return parent


def shims_of(served: Served, containers: Sequence[str]) -> set[int]:
    return {shim_of(served, each) for each in containers}


def can_share(served: Served) -> bool:
    return served.engine.name != "20.10"


def new_pod(kubelet: Kubelet, *, pid: "pb.NamespaceMode" = pb.CONTAINER, handler: str = "") -> Pod:
    return kubelet.pod(handler=handler, **in_context(namespace_options=pb.NamespaceOption(pid=pid)))


def sleeping(kubelet: Kubelet, pod: Pod) -> str:
    return kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER))


def stopping(kubelet: Kubelet, pod: Pod, code: int, *, pid: "pb.NamespaceMode" = pb.CONTAINER) -> str:
    """Start a container that ends with this code when it is stopped."""
    envs = [pb.KeyValue(key="CODE", value=str(code).encode())]
    return kubelet.started(pod, *_COMMAND, envs=envs, linux=in_namespaces(pid=pid))


def has_ended(served: Served, container_id: str) -> bool:
    return served.cri.container_status(container_id).state == pb.CONTAINER_EXITED


def is_up(kubelet: Kubelet, container_id: str) -> bool:
    """Return whether an exec in the container succeeds."""
    try:
        return kubelet.inside(container_id, "echo up") == "up\n"
    except grpc.RpcError:
        return False


def is_reached(served: Served, container_id: str) -> bool:
    """Return whether Docker runs an exec in the container; it does not while containerd is down."""
    api = served.engine.api
    try:
        made = api.exec_create(container_id, ["true"])["Id"]
        api.exec_start(made)
        return bool(api.exec_inspect(made)["ExitCode"] == 0)
    except APIError:
        return False


@pytest.mark.parametrize(
    "pid", [pb.CONTAINER, pb.POD, pb.NODE], ids=["own pids", "pids of the pod", "pids of the node"]
)
def test_containers_with_separate_pid_namespaces_share_pauses_containerd_shim(
    lasting: Served, kubelet: Kubelet, pid: "pb.NamespaceMode"
) -> None:
    pod, other = new_pod(kubelet, pid=pid), new_pod(kubelet, pid=pid)
    containers = [stopping(kubelet, pod, code, pid=pid) for code in (3, 4)]
    shares = can_share(lasting) and pid == pb.CONTAINER
    assert len(shims_of(lasting, [pod.id, *containers])) == (1 if shares else 3)
    assert shim_of(lasting, other.id) != shim_of(lasting, pod.id)

    assert kubelet.cri.exec(containers[0], "sh", "-c", "exit 7").exit_code == 7
    kubelet.cri.stop_container(containers[0], timeout=60)
    assert kubelet.cri.container_status(containers[0]).exit_code == 3
    kubelet.cri.remove_container(containers[0])
    assert is_up(kubelet, containers[1])
    assert is_up(kubelet, stopping(kubelet, pod, 5))
    kubelet.cri.stop(pod.id)
    assert kubelet.cri.container_status(containers[1]).exit_code == 137
    assert kubelet.cri.sandbox_status(other.id).state == pb.SANDBOX_READY


def test_containers_that_share_a_containerd_shim_keep_their_exit_codes(lasting: Served, kubelet: Kubelet) -> None:
    pod = new_pod(kubelet)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        wanted = range(1, MANY + 1)
        made = pool.map(lambda code: stopping(kubelet, pod, code), wanted)
        codes = dict(zip(made, wanted, strict=True))
    shims = shims_of(lasting, [pod.id, *codes])
    assert len(shims) == (1 + MANY - MOST if can_share(lasting) else MANY + 1)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda container: kubelet.cri.stop_container(container, timeout=60), codes))
    assert {each: kubelet.cri.container_status(each).exit_code for each in codes} == codes
    kubelet.cri.remove(pod.id)
    wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in shims))


def test_a_memory_kill_ends_only_its_container(lasting: Served, kubelet: Kubelet) -> None:
    pod = new_pod(kubelet)
    beside = sleeping(kubelet, pod)
    limit = pb.LinuxContainerResources(memory_limit_in_bytes=16 << 20)
    limited = in_namespaces(pid=pb.CONTAINER)
    limited.resources.CopyFrom(limit)
    hog = "x=$(head -c 65000000 /dev/zero | tr '\\0' x); exit 0"
    hungry = kubelet.started(pod, "sh", "-c", f'exec sh -c "{hog}"', linux=limited)

    wait_until(lambda: has_ended(lasting, hungry))
    status = kubelet.cri.container_status(hungry)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")
    assert is_up(kubelet, beside)
    assert kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY


def test_containers_stop_normally_after_their_pause_container_was_removed(lasting: Served, kubelet: Kubelet) -> None:
    pod = new_pod(kubelet)
    container = stopping(kubelet, pod, 9)
    lasting.engine.api.remove_container(pod.id, force=True)
    wait_until(lambda: kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)

    assert is_up(kubelet, container)
    kubelet.cri.stop_container(container, timeout=60)
    assert kubelet.cri.container_status(container).exit_code == 9


def test_a_killed_containerd_shim_ends_its_pod(lasting: Served, kubelet: Kubelet) -> None:
    pod, other = new_pod(kubelet), new_pod(kubelet)
    containers = [stopping(kubelet, pod, 3), sleeping(kubelet, pod)]
    beside = sleeping(kubelet, other)
    everything = [pod.id, *containers]
    processes = [pid_of(lasting, each) for each in everything]
    for shim in shims_of(lasting, everything):
        os.kill(shim, signal.SIGKILL)

    wait_until(lambda: all(has_ended(lasting, each) for each in containers))
    wait_until(lambda: kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_NOTREADY)
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
    assert all(kubelet.cri.container_status(each).exit_code == 137 for each in containers)
    assert is_up(kubelet, beside)
    kubelet.cri.stop(pod.id)
    kubelet.cri.remove(pod.id)
    assert [each.id for each in kubelet.cri.sandboxes()] == [other.id]


@pytest.mark.parametrize("what", ["docker", "containerd"])
def test_a_pod_survives_restarts_of_docker_and_containerd(lasting: Served, kubelet: Kubelet, what: str) -> None:
    pod = new_pod(kubelet)
    container, short = stopping(kubelet, pod, 6), stopping(kubelet, pod, 8)
    shims = shims_of(lasting, [pod.id, container])
    if what == "docker":
        process = pid_of(lasting, short)
        lasting.engine.kill()
        os.kill(process, signal.SIGTERM)
        wait_until(lambda: not Path(f"/proc/{process}").exists())  # it exited while no dockerd runs
        lasting.engine.start()
        lasting.wait_answers()
    else:
        containerd = lasting.engine.containerd()
        assert containerd
        os.kill(containerd, signal.SIGKILL)
        wait_until(lambda: lasting.engine.containerd() not in {None, containerd})

    wait_until(lambda: is_reached(lasting, container))
    assert is_up(kubelet, container)
    assert kubelet.cri.sandbox_status(pod.id).state == pb.SANDBOX_READY
    later = stopping(kubelet, pod, 5)
    assert shims_of(lasting, [pod.id, container]) == shims
    assert (shim_of(lasting, later) in shims) == can_share(lasting)
    for each, code in ((container, 6), (later, 5)):
        kubelet.cri.stop_container(each, timeout=60)
        assert kubelet.cri.container_status(each).exit_code == code
    kubelet.cri.stop_container(short, timeout=60)
    assert has_ended(lasting, short)


def test_containers_of_an_added_runtime_have_separate_containerd_shims(lasting: Served, kubelet: Kubelet) -> None:
    pod = new_pod(kubelet, handler=OTHER)
    container = sleeping(kubelet, pod)

    assert len(shims_of(lasting, [pod.id, container])) == 2
    assert is_up(kubelet, container)


def cri_annotations(served: Served, container_id: str) -> dict[str, str]:
    """Return the annotations in the OCI configuration of a container by which containerd names it."""
    bundles = served.engine.home / "exec/containerd/daemon/io.containerd.runtime.v2.task/moby"
    spec = json.loads((bundles / container_id / "config.json").read_text())
    found = spec.get("annotations") or {}
    return {key.removeprefix(CRI): text for key, text in found.items() if key.startswith(CRI)}


def test_another_runtime_finds_the_sandbox_of_a_container(lasting: Served, kubelet: Kubelet) -> None:
    if lasting.engine.name == "20.10":
        pytest.skip("the engine has no annotations")
    pod = new_pod(kubelet, handler=OTHER)
    container = sleeping(kubelet, pod)
    of_pod = {"sandbox-name": pod.config.metadata.name, "sandbox-uid": pod.config.metadata.uid}
    of_pod["sandbox-namespace"] = pod.config.metadata.namespace
    assert cri_annotations(lasting, pod.id) == {"container-type": "sandbox", **of_pod}
    name = lasting.cri.container_status(container).metadata.name
    assert cri_annotations(lasting, container) == {
        "container-type": "container",
        "container-name": name,
        "image-name": kubelet.image,
        "sandbox-id": pod.id,
        **of_pod,
    }
    plain = new_pod(kubelet)
    assert cri_annotations(lasting, plain.id) == cri_annotations(lasting, sleeping(kubelet, plain)) == {}
