"""The pod that all sides run."""

from integration.cri import container_config, pod_config
from integration.node.images import BUSYBOX
from integration.node.isolation import this_node
from shim.api.v1 import api_pb2 as pb

# Exits on SIGTERM, as a service does; process 1 of a PID namespace ignores signals that it does not trap.
COMMAND = ("sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait")

GRACE_SECONDS = 30
"""Grace period of a stop, the kubelet's default."""

_NAMESPACES = pb.NamespaceOption(pid=pb.CONTAINER)

LIMITS = pb.LinuxContainerResources(memory_limit_in_bytes=128 << 20)
"""New limits of a running container."""


def ordinary_pod(name: str, *, logs: str) -> tuple[pb.PodSandboxConfig, pb.ContainerConfig]:
    """Return a pod on the pod network and its only container; its PID namespace is private, as in a kubelet's pod."""
    config = pod_config(name, log_directory=f"{logs}/{name}", linux=_linux_of_pod())
    return config, _container("main")


def pod_of_many(
    name: str, *, size: int, pid: "pb.NamespaceMode", logs: str
) -> tuple[pb.PodSandboxConfig, list[pb.ContainerConfig]]:
    """Return a pod on the pod network and its containers; `pid` is the mode of their PID namespaces."""
    namespaces = pb.NamespaceOption(pid=pid)
    config = pod_config(name, log_directory=f"{logs}/{name}", linux=_linux_of_pod(namespaces))
    return config, [_container(f"c{number}", namespaces) for number in range(size)]


def _linux_of_pod(namespaces: pb.NamespaceOption = _NAMESPACES) -> pb.LinuxPodSandboxConfig:
    context = pb.LinuxSandboxSecurityContext(namespace_options=namespaces)
    return pb.LinuxPodSandboxConfig(cgroup_parent=cgroup_parent(), security_context=context)


def _container(name: str, namespaces: pb.NamespaceOption = _NAMESPACES) -> pb.ContainerConfig:
    linux = pb.LinuxContainerConfig(security_context=pb.LinuxContainerSecurityContext(namespace_options=namespaces))
    return container_config(name, image=BUSYBOX, command=COMMAND, log_path=f"{name}/0.log", linux=linux)


def cgroup_parent() -> str:
    """Return the cgroup above all pods; a kubelet names a cgroup for each pod."""
    node = this_node()
    return node.cgroup_parent if node else ""
