"""A row for each RPC of the CRI."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """A class of RPCs that share a limit, so that slow RPCs never take the places of fast ones."""

    READ = "read"
    """Answered from memory."""
    IMAGE = "image"
    """Answered from memory too, except before the images are known: then the RPC waits for Docker."""
    WATCH = "watch"
    """A stream that lasts until its client ends it."""
    EXEC = "exec"
    """Lasts as long as a command in a container."""
    PULL = "pull"
    """Lasts as long as a download from a registry."""
    TEARDOWN = "teardown"
    """Lasts up to a grace period. Separate from CHANGE, so that pods can be removed while creates block."""
    CHANGE = "change"
    """All others that wait for Docker, a CNI plugin or a host path."""


LIMITS = {
    Kind.READ: 128,
    Kind.IMAGE: 128,
    Kind.WATCH: 16,
    Kind.EXEC: 512,
    Kind.PULL: 64,
    Kind.TEARDOWN: 1024,
    Kind.CHANGE: 384,
}
"""Concurrent RPCs of each kind; further RPCs are refused with RESOURCE_EXHAUSTED.

Each RPC runs in a thread, which is started on demand and costs about 60 KiB while it waits: all 2256 take some 135 MiB.
A node can drain with 1024 containers in their grace period, and probe 512 others at the same time.
"""


@dataclass(frozen=True, slots=True)
class Rpc:
    """The properties of an RPC."""

    kind: Kind
    mutates: bool = False
    """Whether it changes something, and so is logged. ExecSync is not: exec probes come every few seconds."""
    must_complete: bool = False
    """Whether a stop of the server waits for it. All others are cancelled, and the kubelet repeats them; a step that
    cannot be cancelled, such as a start that Docker has begun, gets a few seconds to end."""


RPCS = {
    "Version": Rpc(Kind.READ),
    "Status": Rpc(Kind.READ),
    "RuntimeConfig": Rpc(Kind.READ),
    "UpdateRuntimeConfig": Rpc(Kind.CHANGE, mutates=True),
    # CNI plugins set up or tear down the network of a pod, and must not be stopped half-way.
    "RunPodSandbox": Rpc(Kind.CHANGE, mutates=True, must_complete=True),
    "StopPodSandbox": Rpc(Kind.TEARDOWN, mutates=True, must_complete=True),
    "RemovePodSandbox": Rpc(Kind.TEARDOWN, mutates=True, must_complete=True),
    "PodSandboxStatus": Rpc(Kind.READ),
    "ListPodSandbox": Rpc(Kind.READ),
    "StreamPodSandboxes": Rpc(Kind.READ),
    "UpdatePodSandboxResources": Rpc(Kind.CHANGE, mutates=True),
    "CreateContainer": Rpc(Kind.CHANGE, mutates=True),
    "StartContainer": Rpc(Kind.CHANGE, mutates=True),
    "StopContainer": Rpc(Kind.TEARDOWN, mutates=True),
    "RemoveContainer": Rpc(Kind.TEARDOWN, mutates=True),
    "ListContainers": Rpc(Kind.READ),
    "StreamContainers": Rpc(Kind.READ),
    "ContainerStatus": Rpc(Kind.READ),
    "UpdateContainerResources": Rpc(Kind.CHANGE, mutates=True),
    "ReopenContainerLog": Rpc(Kind.CHANGE, mutates=True),
    "CheckpointContainer": Rpc(Kind.CHANGE, mutates=True),
    "CheckpointPod": Rpc(Kind.CHANGE, mutates=True),
    "RestorePod": Rpc(Kind.CHANGE, mutates=True, must_complete=True),
    "ExecSync": Rpc(Kind.EXEC),
    "Exec": Rpc(Kind.CHANGE, mutates=True),
    "Attach": Rpc(Kind.CHANGE, mutates=True),
    "PortForward": Rpc(Kind.CHANGE, mutates=True),
    "GetContainerEvents": Rpc(Kind.WATCH),
    "ContainerStats": Rpc(Kind.READ),
    "ListContainerStats": Rpc(Kind.READ),
    "StreamContainerStats": Rpc(Kind.READ),
    "PodSandboxStats": Rpc(Kind.READ),
    "ListPodSandboxStats": Rpc(Kind.READ),
    "StreamPodSandboxStats": Rpc(Kind.READ),
    "ListMetricDescriptors": Rpc(Kind.READ),
    "ListPodSandboxMetrics": Rpc(Kind.READ),
    "StreamPodSandboxMetrics": Rpc(Kind.READ),
    "ListImages": Rpc(Kind.IMAGE),
    "StreamImages": Rpc(Kind.IMAGE),
    "ImageStatus": Rpc(Kind.IMAGE),
    "ImageFsInfo": Rpc(Kind.IMAGE),
    "PullImage": Rpc(Kind.PULL, mutates=True),
    "RemoveImage": Rpc(Kind.CHANGE, mutates=True),
}
