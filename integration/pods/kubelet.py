"""The calls that a kubelet makes for pods, as far as the tests need them."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.cri import Cri, container_config, pod_config
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

SLEEP = ("sleep", "3600")

KUBELETS_PATHS = {
    "masked_paths": [
        "/proc/asound",
        "/proc/acpi",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
    ],
    "readonly_paths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
}
"""Sent by a kubelet for every container, privileged or not, unless the pod wants an unmasked /proc."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod sandbox: its id and its configuration."""

    id: str
    config: pb.PodSandboxConfig


class Kubelet:
    """Makes pods and containers under unused names, and removes them all in the end."""

    def __init__(self, cri: Cri, image: str) -> None:
        self.cri = cri
        self.image = image
        self._pods: list[str] = []
        self._containers: list[str] = []

    def pod(self, *, handler: str = "", **fields: Any) -> Pod:
        """Run a pod; `fields` are those of PodSandboxConfig."""
        config = pod_config(unused_name("pod"), **fields)
        sandbox_id = self.cri.run(config, handler=handler)
        self._pods.append(sandbox_id)
        return Pod(sandbox_id, config)

    def created(self, pod: Pod, *command: str, **fields: Any) -> str:
        """Create a container; it sleeps unless there is a command. `fields` are those of ContainerConfig."""
        own: dict[str, Any] = {"image": self.image, "command": command or SLEEP, **secured()}
        config = container_config(unused_name("c"), **(own | fields))
        container_id = self.cri.create(pod.id, config, pod=pod.config)
        self._containers.append(container_id)
        return container_id

    def started(self, pod: Pod, *command: str, **fields: Any) -> str:
        """Create and start a container."""
        container_id = self.created(pod, *command, **fields)
        self.cri.start(container_id)
        return container_id

    def adopt(self, sandbox_id: str) -> None:
        """Remove this pod at the end as well, which was made otherwise."""
        self._pods.append(sandbox_id)

    def inside(self, container_id: str, script: str) -> str:
        """Run a shell script in a container; return its stdout and stderr."""
        answer = self.cri.exec(container_id, "sh", "-c", script)
        return (answer.stdout + answer.stderr).decode()

    def remove_all(self) -> None:
        """Remove all containers, then all pods; a pod of another fixture stays."""
        with ExitStack() as removals:  # last in, first out; all run, also after a failure
            for sandbox_id in self._pods:
                removals.callback(self.cri.remove, sandbox_id)
            for container_id in self._containers:
                removals.callback(self.cri.remove_container, container_id)


def secured(**fields: Any) -> dict[str, pb.LinuxContainerConfig]:
    """Return the field `linux` of a container with a security context."""
    context = pb.LinuxContainerSecurityContext(**(KUBELETS_PATHS | fields))
    return {"linux": pb.LinuxContainerConfig(security_context=context)}


def in_context(**fields: Any) -> dict[str, Any]:
    """Return the field `linux` of a pod with a security context."""
    context = pb.LinuxSandboxSecurityContext(**fields)
    return {"linux": pb.LinuxPodSandboxConfig(security_context=context)}


def in_namespaces(**options: Any) -> pb.LinuxContainerConfig:
    """Return the field `linux` of a container with these namespaces: `pid`, `ipc` and so on."""
    return secured(namespace_options=pb.NamespaceOption(**options))["linux"]


def pid_of(served: Served, container_id: str) -> int:
    """Return the pid of a container's first process, once it has executed its program; until then it runs runc."""
    pid = int(served.engine.api.inspect_container(container_id)["State"]["Pid"])
    wait_until(lambda: not _comm(pid).startswith("runc"))
    return pid


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:  # it has ended
        return ""


def docker_name(served: Served, container_id: str) -> str:
    """Return a container's name in `docker ps`."""
    return str(served.engine.api.inspect_container(container_id)["Name"]).removeprefix("/")


def proc_status(served: Served, container_id: str) -> dict[str, list[str]]:
    """Return the fields of /proc/<pid>/status of a container's first process."""
    lines = Path(f"/proc/{pid_of(served, container_id)}/status").read_text().splitlines()
    return {key: value.split() for key, value in (line.split(":", 1) for line in lines)}


def wait_image(cri: Cri, reference: str) -> None:
    """Wait until the server lists an image that was just loaded."""
    wait_until(lambda: has_image(cri, reference))


def wait_no_image(cri: Cri, reference: str) -> None:
    """Wait until the server no longer lists an image."""
    wait_until(lambda: not has_image(cri, reference))


def has_image(cri: Cri, reference: str) -> bool:
    """Return whether the server knows an image."""
    request = pb.ImageStatusRequest(image=pb.ImageSpec(image=reference))
    return cri.images.ImageStatus(request).HasField("image")


def unused_name(prefix: str) -> str:
    """Return a name that no other test uses."""
    return f"{prefix}-{secrets.token_hex(3)}"


def failure(raised: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    """Return code and message of an RPC that failed."""
    error: Any = raised.value
    return error.code(), error.details()


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Return code and message of a call that must fail."""
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return failure(raised)
