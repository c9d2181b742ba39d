"""The immutable records of the node's pod sandboxes, containers and images.

A change creates a new record, so readers may keep records. The CRI messages inside are shared, so readers must copy a
message before they change it. Each record holds its list item as a finished message, because kubelets list every second
and building all messages each time would cost more than everything else.
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
    """Pid of the first process; 0 unless running, and also while the exit is pending."""
    exit_code: int
    reason: str
    """`Completed`, `Error`, `OOMKilled`, `StartError` or `Unknown` if EXITED, else empty."""
    message: str
    created_at: int
    started_at: int
    finished_at: int
    from_list_only: bool = False
    """Whether the state comes from Docker's list, because no inspect has succeeded yet: pid and start are unknown."""
    restarts: bool = False
    """Whether a user has given the container a restart policy (`docker update --restart`)."""
    missed_exit: bool = False
    """Whether Docker missed the exit and still lists the container as running although its process is gone."""

    @property
    def running(self) -> bool:
        """Whether the container is running or paused."""
        return self.phase == pb.CONTAINER_RUNNING

    @property
    def may_run(self) -> bool:
        """Whether the container is running or UNKNOWN, so that it must be stopped before its removal."""
        return self.phase in {pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """A pause container and its pod."""

    id: SandboxId
    name: str
    """The Docker name without its slash."""
    config: pb.PodSandboxConfig
    runtime_handler: str
    state: ContainerState
    legacy: bool = False
    """Whether cri-dockerd created it. It can be listed, stopped and removed, but has no checkpoint of this server."""
    image_id: ImageId = _NO_IMAGE
    """The image of the pause container."""
    mount_label: str = ""
    """SELinux label of the files that the pod may use; empty if SELinux does not confine the pod."""
    shim_group: str = ""
    """The group by which all containers share the pause container's containerd-shim; empty if they do not share it."""
    exec_root: str = ""
    """Docker's exec root, its directory for runtime state; empty unless the pause container is running."""
    listed: pb.PodSandbox = field(init=False, compare=False, repr=False)
    """The item of ListPodSandbox without the state, which also depends on the checkpoint."""

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
    """The Docker name without its slash."""
    sandbox_id: SandboxId
    config: pb.ContainerConfig
    """The configuration at create, without command, args and envs."""
    image_id: ImageId
    log_path: str
    """Absolute, or empty for a container without a log."""
    stop_signal: str
    """The signal by which Docker stops it: `SIGTERM`, `SIGRTMIN+1`, a number, or empty for Docker's default."""
    host: HostSettings
    """The current resources, and the supplemental groups that Docker adds."""
    state: ContainerState
    legacy: bool = False
    user: str = ""
    """Docker's `User`: `uid:gid` for a container of this server."""
    docker_log_path: str = ""
    """Docker's log file; empty if unknown, as with the driver `json-file` until the first start."""
    listed: pb.Container = field(init=False, compare=False, repr=False)
    """The item of ListContainers."""

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
        # A kubelet that distinguishes images by runtime handler would not find this image in ListImages, where images
        # have no handler.
        message.image.ClearField("runtime_handler")
        object.__setattr__(self, "listed", message)  # the dataclass is frozen

    @property
    def image_spec(self) -> pb.ImageSpec:
        """The image as the client named it at create, or its id if the name is unknown."""
        return self.config.image if self.config.image.image else pb.ImageSpec(image=self.image_id)


Record = SandboxRecord | ContainerRecord

Key: TypeAlias = tuple[str, str, int]
"""Identifies a pod sandbox or container before Docker has given it an id."""


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
    """A change of a pod sandbox or container. Each change is published once, and in order per object."""

    kind: pb.ContainerEventType
    record: Record
    """The record after the change; for a deleted object its last record."""
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
    """The image from which it was built on this node; empty for most images."""
    inspected: bool = False
    """Whether the fields below, which never change, are known. Docker's list lacks them."""
    user: str = ""
    """`USER` of the image: name or uid, perhaps with `:group`."""
    entrypoint: tuple[str, ...] = ()
    architecture: str = ""
    """Such as amd64."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its tags and digests."""
        return (*self.repo_tags, *self.repo_digests)
