"""The verbose information of `crictl inspect` and `crictl inspectp`, under containerd's names."""

import json
from typing import Any

import pytest

from integration.conftest import Served
from integration.pods.kubelet import Kubelet, Pod, secured
from shim.api.v1 import api_pb2 as pb

Profile = pb.SecurityProfile


def inspect(kubelet: Kubelet, container: str) -> dict[str, Any]:
    request = pb.ContainerStatusRequest(container_id=container, verbose=True)
    found: dict[str, Any] = json.loads(kubelet.cri.runtime.ContainerStatus(request).info["info"])
    return found


def inspectp(kubelet: Kubelet, pod: Pod) -> dict[str, Any]:
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=pod.id, verbose=True)
    found: dict[str, Any] = json.loads(kubelet.cri.runtime.PodSandboxStatus(request).info["info"])
    return found


def test_a_running_containers_info_has_its_runtime_spec(kubelet: Kubelet, pod: Pod) -> None:
    fields = secured(seccomp=Profile(profile_type=Profile.RuntimeDefault))
    container = kubelet.started(pod, **fields)

    info = inspect(kubelet, container)

    # The Kubernetes tutorial on seccomp reads this path.
    assert info["runtimeSpec"]["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    assert info["runtimeType"] == "io.containerd.runc.v2"
    assert info["snapshotter"]
    assert info["image"].endswith("busybox:latest")
    assert info["config"]["linux"]["security_context"]["seccomp"] == {}
    assert info["privileged"] is False


def test_the_info_of_a_privileged_container_says_so(served: Served, kubelet: Kubelet) -> None:
    if served.engine.name == "20.10":
        pytest.skip("privileged containers fail here on Docker 20.10")
    privileged = pb.LinuxSandboxSecurityContext(privileged=True)
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=privileged))
    fields = secured(privileged=True)
    container = kubelet.started(pod, **fields)

    assert inspect(kubelet, container)["privileged"] is True


def test_an_exited_containers_info_has_no_runtime_spec(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod)
    kubelet.cri.stop_container(container)

    info = inspect(kubelet, container)

    assert (info["pid"], info["runtimeSpec"]) == (0, None)
    assert info["config"]["metadata"]["name"]


def test_a_pods_info_has_the_runtime_spec_of_its_pause_container(kubelet: Kubelet, pod: Pod) -> None:
    info = inspectp(kubelet, pod)

    namespaces = {each["type"]: each for each in info["runtimeSpec"]["linux"]["namespaces"]}
    assert {"pid", "ipc", "mount"} <= set(namespaces)
    assert "pause" in info["image"]
    assert info["config"]["metadata"]["namespace"]
