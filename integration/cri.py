"""A CRI client like the kubelet's, and builders of ordinary pods and containers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from shim.api.v1 import api_pb2 as pb
from shim.api.v1.api_pb2_grpc import ImageServiceStub, RuntimeServiceStub

NAMESPACE = "default"
CONNECT_SECONDS = 60.0

HOST_NETWORK = pb.LinuxPodSandboxConfig(
    security_context=pb.LinuxSandboxSecurityContext(namespace_options=pb.NamespaceOption(network=pb.NODE))
)

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # Reconnect at once to a restarted server, also in a client that saw the old server go.
    ("grpc.use_local_subchannel_pool", 1),
    *((f"grpc.{which}_reconnect_backoff_ms", 100) for which in ("initial", "max")),
    # Despite its name this is the time that an attempt to connect may take; it is long for busy machines.
    ("grpc.min_reconnect_backoff_ms", 5000),
]


@dataclass(frozen=True, slots=True)
class Cri:
    """The two services of a server."""

    runtime: RuntimeServiceStub
    images: ImageServiceStub

    def run(self, config: pb.PodSandboxConfig, *, handler: str = "") -> str:
        """Run a pod sandbox and return its id."""
        request = pb.RunPodSandboxRequest(config=config, runtime_handler=handler)
        return self.runtime.RunPodSandbox(request).pod_sandbox_id

    def create(self, sandbox_id: str, config: pb.ContainerConfig, *, pod: pb.PodSandboxConfig) -> str:
        """Create a container and return its id."""
        request = pb.CreateContainerRequest(pod_sandbox_id=sandbox_id, config=config, sandbox_config=pod)
        return self.runtime.CreateContainer(request).container_id

    def start(self, container_id: str) -> None:
        """Start a container."""
        self.runtime.StartContainer(pb.StartContainerRequest(container_id=container_id))

    def exec(self, container_id: str, *cmd: str, timeout: int = 30) -> pb.ExecSyncResponse:
        """Run a command in a container."""
        return self.runtime.ExecSync(pb.ExecSyncRequest(container_id=container_id, cmd=cmd, timeout=timeout))

    def sandbox_status(self, sandbox_id: str) -> pb.PodSandboxStatus:
        """Return the status of a sandbox."""
        return self.runtime.PodSandboxStatus(pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id)).status

    def container_status(self, container_id: str) -> pb.ContainerStatus:
        """Return the status of a container."""
        return self.runtime.ContainerStatus(pb.ContainerStatusRequest(container_id=container_id)).status

    def stop_container(self, container_id: str, *, timeout: int = 0) -> None:
        """Stop a container."""
        self.runtime.StopContainer(pb.StopContainerRequest(container_id=container_id, timeout=timeout))

    def remove_container(self, container_id: str) -> None:
        """Remove a container."""
        self.runtime.RemoveContainer(pb.RemoveContainerRequest(container_id=container_id))

    def stop(self, sandbox_id: str) -> None:
        """Stop a sandbox."""
        self.runtime.StopPodSandbox(pb.StopPodSandboxRequest(pod_sandbox_id=sandbox_id))

    def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox."""
        self.runtime.RemovePodSandbox(pb.RemovePodSandboxRequest(pod_sandbox_id=sandbox_id))

    def remove_all(self) -> None:
        """Stop and remove all sandboxes, with their containers."""
        for sandbox in self.sandboxes():
            self.stop(sandbox.id)
            self.remove(sandbox.id)

    def sandboxes(self, **filters: Any) -> list[pb.PodSandbox]:
        """List sandboxes."""
        request = pb.ListPodSandboxRequest(filter=pb.PodSandboxFilter(**filters))
        return list(self.runtime.ListPodSandbox(request).items)

    def containers(self, **filters: Any) -> list[pb.Container]:
        """List containers."""
        request = pb.ListContainersRequest(filter=pb.ContainerFilter(**filters))
        return list(self.runtime.ListContainers(request).containers)


@contextmanager
def connected(socket: Path) -> Iterator[Cri]:
    """Connect to a server and wait until it answers."""
    with grpc.insecure_channel(f"unix://{socket}", options=_OPTIONS) as channel:
        grpc.channel_ready_future(channel).result(CONNECT_SECONDS)
        yield Cri(RuntimeServiceStub(channel), ImageServiceStub(channel))


def pod_config(name: str, *, uid: str = "", attempt: int = 0, **fields: Any) -> pb.PodSandboxConfig:
    """Return an ordinary pod; `fields` are further fields of PodSandboxConfig."""
    metadata = pb.PodSandboxMetadata(name=name, uid=uid or f"uid-{name}", namespace=NAMESPACE, attempt=attempt)
    labels = {
        "io.kubernetes.pod.name": name,
        "io.kubernetes.pod.namespace": NAMESPACE,
        "io.kubernetes.pod.uid": metadata.uid,
    }
    values: dict[str, Any] = {"metadata": metadata, "hostname": name, "labels": labels}
    return pb.PodSandboxConfig(**(values | fields))


def container_config(
    name: str, *, image: str | pb.ImageSpec, command: Sequence[str] = ("sleep", "3600"), attempt: int = 0, **fields: Any
) -> pb.ContainerConfig:
    """Return an ordinary container that sleeps; `fields` are further fields of ContainerConfig."""
    values: dict[str, Any] = {
        "metadata": pb.ContainerMetadata(name=name, attempt=attempt),
        "image": pb.ImageSpec(image=image) if isinstance(image, str) else image,
        "command": command,
        "labels": {"io.kubernetes.container.name": name},
    }
    return pb.ContainerConfig(**(values | fields))
