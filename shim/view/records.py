"""One immutable record for each pod sandbox, container and image of the node.

A change makes a new record, so a reader may keep one as long as it likes. The CRI messages inside are shared and
must not be changed by readers; copy first. The message of each list item is built with its record: kubelets list every
second, and building the messages of all containers each time would cost more than everything else.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from shim.api.v1 import api_pb2 as pb
from shim.domain.ids import ContainerId, ImageId, SandboxId
from shim.domain.names import sandbox_name
from shim.engine.answers import HostSettings

_NO_IMAGE = ImageId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """The state of a container. Times are ns since the epoch, 0 for never."""

    phase: pb.ContainerState
    """CREATED, RUNNING, EXITED or UNKNOWN."""
    pid: int
    """Of the first process; 0 unless running, and while the exit of a container is pending."""
    exit_code: int
    reason: str
    """`Completed`, `Error`, `OOMKilled`, `StartError` or `Unknown` once EXITED, else empty."""
    message: str
    created_at: int
    started_at: int
    finished_at: int
    from_list_only: bool = False
    """Known from Docker's list only, since no inspect has succeeded yet: pid and `started_at` are not known."""
    missed_exit: bool = False
    """EXITED although Docker lists it as running: its process is gone, and Docker has missed that."""

    @property
    def running(self) -> bool:
        """Whether it runs, paused or not."""
        return self.phase == pb.CONTAINER_RUNNING

    @property
    def may_run(self) -> bool:
        """Whether it is running or UNKNOWN: a container of unknown state has to be stopped too."""
        return self.phase in {pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """A pause container and its pod."""

    id: SandboxId
    name: str
    """Docker name, without the slash."""
    config: pb.PodSandboxConfig
    runtime_handler: str
    state: ContainerState
    legacy: bool = False
    """Created by cri-dockerd: listed, stopped and removed, but without a checkpoint of ours."""
    image_id: ImageId = _NO_IMAGE
    """The image of the pause container."""
    mount_label: str = ""
    """SELinux label of the files its pod may use; empty where SELinux does not confine it."""
    shim_group: str = ""
    """What containers name to run under the containerd-shim of pause; empty where each has its own."""
    exec_root: str = ""
    """Docker's directory for what runs; empty unless pause does."""
    listed: pb.PodSandbox = field(init=False, compare=False, repr=False)
    """Its item of ListPodSandbox, except for the state, which also depends on the checkpoint."""

    def __post_init__(self) -> None:
        message = pb.PodSandbox(
            id=self.id,
            metadata=self.config.metadata,
            created_at=self.state.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
            runtime_handler=self.runtime_handler,
        )
        object.__setattr__(self, "listed", message)  # the dataclass is frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRecord:
    """An application container."""

    id: ContainerId
    name: str
    """Docker name, without the slash."""
    sandbox_id: SandboxId
    config: pb.ContainerConfig
    """As it was created, without command, args and envs."""
    image_id: ImageId
    log_path: str
    """Absolute, or empty for a container without a log."""
    stop_signal: str
    """The signal of Docker's stop: `SIGTERM`, `SIGRTMIN+1`, a number, or empty for Docker's default."""
    host: HostSettings
    """The present resources, and the groups that Docker adds."""
    state: ContainerState
    legacy: bool = False
    user: str = ""
    """As Docker knows it: `uid:gid` for one of ours."""
    docker_log_path: str = ""
    """Docker's own log of it; empty where it is not known: of the driver `json-file` until it has been started."""
    listed: pb.Container = field(init=False, compare=False, repr=False)
    """Its item of ListContainers."""

    def __post_init__(self) -> None:
        message = pb.Container(
            id=self.id,
            pod_sandbox_id=self.sandbox_id,
            metadata=self.config.metadata,
            image=self.image_spec,
            image_ref=self.image_id,
            image_id=self.image_id,
            state=self.state.phase,
            created_at=self.state.created_at,
            labels=self.config.labels,
            annotations=self.config.annotations,
        )
        # A kubelet that distinguishes images by handler searches ListImages for this one; no image there has a handler.
        message.image.ClearField("runtime_handler")
        object.__setattr__(self, "listed", message)  # the dataclass is frozen

    @property
    def image_spec(self) -> pb.ImageSpec:
        """The image as the client named it at create; its id if that is not known."""
        return self.config.image if self.config.image.image else pb.ImageSpec(image=self.image_id)


Record = SandboxRecord | ContainerRecord

Key: TypeAlias = tuple[str, str, int]
"""What a pod sandbox or container is called by before Docker has given it an id."""


def sandbox_key(metadata: pb.PodSandboxMetadata) -> Key:
    """Return the key of a pod sandbox."""
    return "", sandbox_name(metadata), 0


def container_key(sandbox_id: str, metadata: pb.ContainerMetadata) -> Key:
    """Return the key of a container in a sandbox."""
    return sandbox_id, metadata.name, metadata.attempt


def key_of(record: Record) -> Key:
    """Return the key of a record."""
    if isinstance(record, SandboxRecord):
        return sandbox_key(record.config.metadata)
    return container_key(record.sandbox_id, record.config.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a pod sandbox or container for subscribers: each is published once, and in order per object."""

    kind: pb.ContainerEventType
    record: Record
    """The record after the change; of a deleted object its last one."""
    at: int
    """When the view published it, ns since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecord:
    """An image of the Engine."""

    id: ImageId
    repo_tags: tuple[str, ...]
    """Canonical: `docker.io/library/busybox:latest`; sorted."""
    repo_digests: tuple[str, ...]
    """Canonical: `docker.io/library/busybox@sha256:...`; sorted."""
    size: int
    """Bytes."""
    parent: ImageId = _NO_IMAGE
    """The image that it was built from on this node; empty for most."""
    inspected: bool = False
    """Whether what follows is known, which Docker's list does not have. It never changes."""
    user: str = ""
    """`USER` of the image: name or uid, perhaps with `:group`."""
    entrypoint: tuple[str, ...] = ()
    architecture: str = ""
    """By its name in images, such as amd64."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its tags and digests."""
        return (*self.repo_tags, *self.repo_digests)
