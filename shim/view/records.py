"""One immutable record for each pod sandbox, container and image of the node.

A change makes a new record, so a reader may keep one as long as it likes. The CRI messages inside are shared and
must not be changed by readers; copy first. What lists answer is made with the record: kubelets list every second, and
building messages for all containers each time would cost more than all the rest.
"""

from dataclasses import dataclass, field

from shim.api.v1 import api_pb2 as pb
from shim.domain.ids import ContainerId, ImageId, SandboxId
from shim.engine.answers import HostSettings

_NO_IMAGE = ImageId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """Where a container is between its creation and its end. Times are ns since the epoch, 0 for never."""

    phase: pb.ContainerState
    pid: int
    """Of the first process, 0 unless running, and while the end of a container is held back for its output."""
    exit_code: int
    reason: str
    """`Completed`, `Error`, `OOMKilled`, `StartError` or `Unknown` once EXITED, else empty."""
    message: str
    created_at: int
    started_at: int
    finished_at: int
    from_list_only: bool = False
    """Told by a list alone, since Docker has not answered an inspect yet: pid and `started_at` are not known."""
    missed_exit: bool = False
    """EXITED although Docker says that it runs: its process is gone, and Docker has missed that."""

    @property
    def running(self) -> bool:
        """Whether it runs, paused or not."""
        return self.phase == pb.CONTAINER_RUNNING

    @property
    def may_run(self) -> bool:
        """Whether it runs for all that is known: what Docker tells nothing of has to be stopped too."""
        return self.phase in {pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRecord:
    """A pause container and the pod it stands for."""

    id: SandboxId
    name: str
    """Docker name, without the slash."""
    config: pb.PodSandboxConfig
    runtime_handler: str
    state: ContainerState
    legacy: bool = False
    """Made by cri-dockerd: listed, stopped and removed, but without a checkpoint of ours."""
    image_id: ImageId = _NO_IMAGE
    """What pause was made from."""
    mount_label: str = ""
    """SELinux label of the files its pod may use; empty where SELinux does not confine it."""
    listed: pb.PodSandbox = field(init=False, compare=False, repr=False)
    """As ListPodSandbox tells it, but for its state, which the checkpoint decides too."""

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
    """What Docker will send on stop: `SIGTERM`, `SIGRTMIN+1`, a number, or empty for Docker's default."""
    host: HostSettings
    """The resources as Docker applies them now, and the groups it adds."""
    state: ContainerState
    legacy: bool = False
    user: str = ""
    """As Docker knows it: `uid:gid` for one of ours."""
    docker_log_path: str = ""
    """Docker's own log of it; empty where it is not known: of the driver `json-file` until it has been started."""
    listed: pb.Container = field(init=False, compare=False, repr=False)
    """As ListContainers tells it."""

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
        # A kubelet that tells images apart by handler looks for this one in ListImages, where no image has any.
        message.image.ClearField("runtime_handler")
        object.__setattr__(self, "listed", message)  # the dataclass is frozen

    @property
    def image_spec(self) -> pb.ImageSpec:
        """The image as the client named it at create; its id for a container that does not tell."""
        return self.config.image if self.config.image.image else pb.ImageSpec(image=self.image_id)


Record = SandboxRecord | ContainerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One step in the life of a pod sandbox or container, as subscribers get it: each once, in order for each."""

    kind: pb.ContainerEventType
    record: Record
    """As it is after the change; of what was deleted, its last state."""
    at: int
    """When the view learned of it, ns since the epoch."""


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
    user: str
    """`USER` of the image: name or uid, perhaps with `:group`."""
