"""Namespaces that pods and containers share, seen from inside."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.cri import HOST_NETWORK
from integration.node.isolation import HOST_NAME
from integration.pods.kubelet import Kubelet, failure, in_namespaces, pid_of
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb


def with_namespaces(**options: Any) -> pb.LinuxPodSandboxConfig:
    context = pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(**options))
    return pb.LinuxPodSandboxConfig(security_context=context)


def own_namespace(kind: str) -> str:
    return str(Path(f"/proc/self/ns/{kind}").readlink())


def namespace_of(served: Served, container_id: str, kind: str) -> str:
    return str(Path(f"/proc/{pid_of(served, container_id)}/ns/{kind}").readlink())


def seen_inside(kubelet: Kubelet, container_id: str, kind: str) -> str:
    return kubelet.cri.exec(container_id, "readlink", f"/proc/self/ns/{kind}").stdout.decode().strip()


@pytest.mark.parametrize("kind", ["pid", "ipc"])
def test_a_pods_containers_share_its_namespace(kubelet: Kubelet, served: Served, kind: str) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod, linux=in_namespaces(**{kind: pb.POD}))

    assert seen_inside(kubelet, container, kind) == namespace_of(served, pod.id, kind)
    assert seen_inside(kubelet, container, kind) != own_namespace(kind)


def test_a_container_can_have_a_separate_pid_namespace(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    container = kubelet.started(pod, linux=in_namespaces(pid=pb.CONTAINER))

    # Until it executes the program, a container's first process runs runc.
    wait_until(lambda: kubelet.cri.exec(container, "cat", "/proc/1/comm").stdout == b"sleep\n")


@pytest.mark.parametrize("kind", ["network", "pid", "ipc"])
def test_a_pod_can_use_a_namespace_of_the_node(kubelet: Kubelet, served: Served, kind: str) -> None:
    pod = kubelet.pod(linux=with_namespaces(**{kind: pb.NODE}))
    container = kubelet.started(pod, linux=in_namespaces(**{kind: pb.NODE}))

    name = {"network": "net"}.get(kind, kind)
    assert seen_inside(kubelet, container, name) == own_namespace(name)
    assert namespace_of(served, pod.id, name) == own_namespace(name)
    options = kubelet.cri.sandbox_status(pod.id).linux.namespaces.options
    assert getattr(options, kind) == pb.NODE


def test_a_container_can_join_the_pid_namespace_of_another(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    target = kubelet.started(pod, "sleep", "4000", linux=in_namespaces(pid=pb.CONTAINER))
    debugger = kubelet.started(pod, linux=in_namespaces(pid=pb.TARGET, target_id=target))

    wait_until(lambda: kubelet.cri.exec(debugger, "cat", "/proc/1/cmdline").stdout == b"sleep\x004000\x00")


def test_a_target_must_run_in_the_same_pod(kubelet: Kubelet) -> None:
    pod, other = kubelet.pod(), kubelet.pod()
    elsewhere = kubelet.started(other, linux=in_namespaces(pid=pb.CONTAINER))

    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, linux=in_namespaces(pid=pb.TARGET, target_id=elsewhere))

    code, message = failure(refusal)
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert "target_id" in message


def test_a_host_network_pod_has_the_nodes_network_and_name(kubelet: Kubelet, served: Served) -> None:
    namespaces = served.snapshot().namespaces
    pod = kubelet.pod(linux=HOST_NETWORK)
    container = kubelet.started(pod)

    assert seen_inside(kubelet, container, "net") == own_namespace("net")
    assert kubelet.cri.exec(container, "hostname").stdout.decode().strip() == HOST_NAME
    assert kubelet.cri.sandbox_status(pod.id).network.ip == ""
    assert served.snapshot().namespaces == namespaces


def test_two_containers_share_memory_and_the_loopback(kubelet: Kubelet) -> None:
    pod = kubelet.pod()
    writer = kubelet.started(pod, "sh", "-c", "echo shared >/dev/shm/note; exec nc -l -p 9000 -e echo answered")
    reader = kubelet.started(pod)

    wait_until(lambda: kubelet.cri.exec(reader, "cat", "/dev/shm/note").stdout == b"shared\n")
    answer = wait_until(lambda: kubelet.cri.exec(reader, "nc", "127.0.0.1", "9000").stdout)
    assert answer == b"answered\n"
    assert kubelet.cri.container_status(writer).metadata.attempt == 0
