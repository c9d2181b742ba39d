"""The RPCs of the CRI, a row each."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """RPCs that share a limit, so that slow kinds never use up the places of fast ones."""

    READ = "read"
    """Answered from memory."""
    IMAGE = "image"
    """Answered from memory too, unless images are not known yet: then Docker is asked, or its list waited for."""
    WATCH = "watch"
    """A stream that lasts as long as its client wants."""
    EXEC = "exec"
    """Lasts as long as a command in a container."""
    PULL = "pull"
    """Lasts as long as a registry needs."""
    TEARDOWN = "teardown"
    """Lasts up to a grace period. Apart from CHANGE, so that pods can be removed while none can be made."""
    CHANGE = "change"
    """Everything else that asks Docker, a CNI plugin or a host path."""


LIMITS = {
    Kind.READ: 128,
    Kind.IMAGE: 128,
    Kind.WATCH: 16,
    Kind.EXEC: 512,
    Kind.PULL: 64,
    Kind.TEARDOWN: 1024,
    Kind.CHANGE: 384,
}
"""RPCs of a kind at the same time; more are refused with RESOURCE_EXHAUSTED.

Each has a thread of its own, made when it is needed. One that waits costs about 60 KiB: 2256 of them, all there may be,
some 135 MiB. A node drains with 1024 containers in their grace period, and probes 512 others at the same time.
"""


@dataclass(frozen=True, slots=True)
class Rpc:
    """The properties of an RPC, by its name."""

    kind: Kind
    mutates: bool = False
    """It changes something, which is worth a line in the log. Not so ExecSync: exec probes come every few seconds."""
    completes: bool = False
    """A stop of the server waits for it. All others are cut, for the kubelet to repeat them; what cannot be cut of
    them, such as a start that Docker has begun, has a few seconds to end."""


RPCS = {
    "Version": Rpc(Kind.READ),
    "Status": Rpc(Kind.READ),
    "RuntimeConfig": Rpc(Kind.READ),
    "UpdateRuntimeConfig": Rpc(Kind.CHANGE, mutates=True),
    # The network of a pod is set up or torn down by plugins, which must not be stopped half-way.
    "RunPodSandbox": Rpc(Kind.CHANGE, mutates=True, completes=True),
    "StopPodSandbox": Rpc(Kind.TEARDOWN, mutates=True, completes=True),
    "RemovePodSandbox": Rpc(Kind.TEARDOWN, mutates=True, completes=True),
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
