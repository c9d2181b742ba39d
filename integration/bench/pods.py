"""The pod that both sides make."""

from integration.cri import container_config, pod_config
from integration.node.images import BUSYBOX
from integration.node.isolation import this_node
from shim.api.v1 import api_pb2 as pb

# Ends on SIGTERM, as a service does; process 1 of a pid namespace ignores what it does not trap.
COMMAND = ("sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait")

GRACE_SECONDS = 30
"""Grace period of a stop, the kubelet's default."""

LIMITS = pb.LinuxContainerResources(memory_limit_in_bytes=128 << 20)
"""What a running container's limits are changed to."""


def ordinary_pod(name: str, *, logs: str) -> tuple[pb.PodSandboxConfig, pb.ContainerConfig]:
    """Return a pod on the pod network, and its only container."""
    linux = pb.LinuxPodSandboxConfig(cgroup_parent=cgroup_parent())
    config = pod_config(name, log_directory=f"{logs}/{name}", linux=linux)
    return config, container_config("main", image=BUSYBOX, command=COMMAND, log_path="main/0.log")


def cgroup_parent() -> str:
    """Return the control group around those of all pods; a kubelet names one for each."""
    node = this_node()
    return node.cgroup_parent if node else ""
