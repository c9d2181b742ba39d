"""The shapes of the Engine's answers.

Decoding is tolerant, since fields come and go between API 1.41 and the newest version (source: the Engine API version
history): every field has a default, unknown fields are ignored, and `null` is accepted where the Engine writes it.
Times stay RFC 3339 text; `shim.view.translate` converts them to nanoseconds.
"""

from enum import Enum
from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True, rename="pascal"):
    """Base of the answers, whose keys are in PascalCase."""


class Runtime(msgspec.Struct, frozen=True):
    """An OCI runtime of the daemon; its keys are in lower case."""

    path: str = ""
    runtime_args: list[str] | None = msgspec.field(default=None, name="runtimeArgs")
    """Arguments that precede the OCI command line."""
    status: dict[str, str] | None = None
    """`org.opencontainers.runtime-spec.features` holds the runtime's features as JSON (API 1.44)."""


class DiscoveredDevice(Answer, frozen=True):
    """A device that a device driver of the Engine has found."""

    source: str = ""
    """The driver: `cdi`."""
    id: str = msgspec.field(default="", name="ID")


class SwarmInfo(Answer, frozen=True):
    """`Swarm` of `GET /info`."""

    local_node_state: str = "inactive"
    """With any other state, dockerd does not start with live-restore."""


class EngineInfo(Answer, frozen=True):
    """The part of `GET /info` that the server reads."""

    id: str = msgspec.field(default="", name="ID")
    server_version: str = ""
    architecture: str = ""
    """The kernel's name of it, such as x86_64."""
    cgroup_driver: str = ""
    """`systemd`, `cgroupfs` or `none`."""
    cgroup_version: str = "1"
    docker_root_dir: str = ""
    driver: str = ""
    driver_status: list[list[str]] | None = None
    runtimes: dict[str, Runtime] | None = None
    default_runtime: str = ""
    security_options: list[str] | None = None
    cdi_spec_dirs: list[str] | None = msgspec.field(default=None, name="CDISpecDirs")
    """None or empty if CDI is off (API 1.44)."""
    discovered_devices: list[DiscoveredDevice] | None = None
    """API 1.50."""
    live_restore_enabled: bool = False
    swarm: SwarmInfo | None = None
    warnings: list[str] | None = None
    """Problems of this machine that the daemon reports, a sentence each."""


class ContainerState(Answer, frozen=True):
    """`State` of a container inspect."""

    status: str = ""
    """created, running, paused, restarting, removing, exited or dead."""
    running: bool = False
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    started_at: str = ""
    finished_at: str = ""


class ContainerSettings(Answer, frozen=True):
    """`Config` of a container inspect."""

    image: str = ""
    user: str = ""
    """Name or uid, perhaps with `:group`; by default the user of the image."""
    labels: dict[str, str] | None = None
    stop_signal: str = ""
    env: list[str] | None = None
    """The variables of the image and of the create request."""


class LogSettings(Answer, frozen=True):
    """`HostConfig.LogConfig` of a container inspect."""

    type: str = ""
    """The logging driver."""


NO_SWAP = 1
"""Bytes by which `MemorySwap` exceeds `Memory` for a container without swap; the kernel rounds them to 0 pages.

If both were equal, the OCI runtime would not pass the swap limit to systemd. systemd would then lift the limit whenever
it rewrites the control group, such as at a daemon-reload (opencontainers/cgroups#74).
"""


class RestartPolicy(Answer, frozen=True):
    """`HostConfig.RestartPolicy` of a container inspect."""

    name: str = ""
    """`no` or empty, `always`, `unless-stopped`, `on-failure`."""


class HostSettings(Answer, frozen=True):
    """`HostConfig` of a container inspect."""

    network_mode: str = ""
    pid_mode: str = ""
    ipc_mode: str = ""
    runtime: str = ""
    cgroup_parent: str = ""
    cpu_period: int = 0
    cpu_quota: int = 0
    cpu_shares: int = 0
    cpuset_cpus: str = ""
    cpuset_mems: str = ""
    memory: int = 0
    memory_swap: int = 0
    oom_score_adj: int = 0
    pids_limit: int | None = None
    memory_reservation: int = 0
    log_config: LogSettings = LogSettings()
    group_add: list[str] | None = None
    annotations: dict[str, str] | None = None
    """Annotations for the OCI runtime (API 1.43)."""
    restart_policy: RestartPolicy = RestartPolicy()
    init: bool | None = None
    """None if the create request left it to the daemon."""
    userns_mode: str = ""
    container_id_file: str = msgspec.field(default="", name="ContainerIDFile")

    @property
    def memory_and_swap(self) -> int:
        """The limit of memory plus swap; for a container without swap the memory limit."""
        return self.memory if self.memory_swap == self.memory + NO_SWAP else self.memory_swap


class MountPoint(Answer, frozen=True):
    """A row of `Mounts` of a container inspect: a mount, however it was requested."""

    source: str = ""
    """Path on the host; empty for a tmpfs."""
    destination: str = ""
    rw: bool = msgspec.field(default=True, name="RW")
    propagation: str = ""


class NetworkSettings(Answer, frozen=True):
    """`NetworkSettings` of a container inspect."""

    sandbox_key: str = ""
    """Where Docker has mounted the network namespace; empty unless the container is running."""


class ContainerInspect(Answer, frozen=True):
    """`GET /containers/{id}/json`."""

    id: str
    name: str = ""
    """With a leading slash."""
    created: str = ""
    image: str = ""
    """The image id."""
    path: str = ""
    """The program; with `args` the command line, by default the image's."""
    args: list[str] | None = None
    state: ContainerState = ContainerState()
    config: ContainerSettings = ContainerSettings()
    host_config: HostSettings = HostSettings()
    network_settings: NetworkSettings | None = None
    mount_label: str = ""
    """SELinux label of the files it may use; empty if SELinux does not confine it."""
    mounts: list[MountPoint] | None = None
    log_path: str = ""
    """Empty until the first start, and for drivers other than `json-file`."""
    resolv_conf_path: str = ""
    exec_ids: list[str] | None = msgspec.field(default=None, name="ExecIDs")
    """The execs that are running or have not started."""


class ContainerSummary(Answer, frozen=True):
    """A row of `GET /containers/json`."""

    id: str
    names: list[str] | None = None
    """Each with a leading slash."""
    image_id: str = msgspec.field(default="", name="ImageID")
    created: int = 0
    """Seconds since the epoch."""
    state: str = ""
    labels: dict[str, str] | None = None
    host_config: HostSettings = HostSettings()
    """A list has only its network mode."""


class ImageSettings(Answer, frozen=True):
    """`Config` of an image inspect. A verbose ImageStatus shows all of it with Docker's keys."""

    user: str = ""
    labels: dict[str, str] | None = None
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None
    stop_signal: str = ""
    env: list[str] | None = None
    exposed_ports: dict[str, Any] | None = None
    volumes: dict[str, Any] | None = None
    working_dir: str = ""


class RootFs(Answer, frozen=True):
    """`RootFS` of an image inspect."""

    type: str = ""
    layers: list[str] | None = None
    """Digests of the uncompressed layers."""


class ManifestSize(Answer, frozen=True):
    """`Size` of a manifest of an image."""

    total: int = 0
    """Bytes of the pulled and of the unpacked content."""


class ImageManifest(Answer, frozen=True):
    """A row of `Manifests` of an image inspect: an image for one platform, or an attestation of one."""

    size: ManifestSize = ManifestSize()


class ImageInspect(Answer, frozen=True):
    """`GET /images/{ref}/json`, with `manifests`."""

    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    parent: str = ""
    size: int = 0
    """Bytes; with the containerd image store the compressed size."""
    manifests: list[ImageManifest] | None = None
    """With the containerd image store, from API 1.48 on."""
    config: ImageSettings | None = None
    created: str | None = None
    """RFC 3339; None if the image has no date."""
    architecture: str = ""
    variant: str = ""
    os: str = ""
    root_fs: RootFs = msgspec.field(default=RootFs(), name="RootFS")

    @property
    def size_on_disk(self) -> int:
        """Bytes, as in Docker's list of images."""
        return sum(manifest.size.total for manifest in self.manifests) if self.manifests else self.size


class ImageSummary(Answer, frozen=True):
    """A row of `GET /images/json`."""

    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0
    parent_id: str = ""


class ExecInspect(Answer, frozen=True):
    """`GET /exec/{id}/json`."""

    running: bool = False
    exit_code: int | None = None
    pid: int = 0
    """In the pid namespace of the daemon; 0 until the process is running."""
    detach_keys: str = ""
    """The detach keys as bytes in base64."""


class PathKind(Enum):
    """Kinds of objects at a path."""

    FILE = "a regular file"
    DIRECTORY = "a directory"
    LINK = "a symbolic link"
    OTHER = "neither a file nor a directory"
    """A FIFO, socket or device."""


class PathStat(msgspec.Struct, frozen=True, rename="camel"):
    """The header `X-Docker-Container-Path-Stat` of `HEAD /containers/{id}/archive`."""

    size: int = 0
    """Bytes of a regular file."""
    mode: int = 0
    """Go's `os.FileMode`."""
    link_target: str = ""
    """The final target of a symbolic link: an absolute path inside the container's root file system."""

    @property
    def kind(self) -> PathKind:
        """Kind of the object at the path."""
        return _KINDS.get(self.mode & _MODE_TYPE, PathKind.OTHER)


_MODE_TYPE = 0x8F280000
"""Directory, symlink, device, named pipe, socket, character device, irregular."""
_KINDS = {0: PathKind.FILE, 1 << 31: PathKind.DIRECTORY, 1 << 27: PathKind.LINK}


class Actor(Answer, frozen=True):
    """The object of an event."""

    id: str = msgspec.field(default="", name="ID")
    attributes: dict[str, str] | None = None


class Event(Answer, frozen=True):
    """A message of `GET /events`, without the fields that API 1.52 dropped."""

    type: str = ""
    action: str = ""
    actor: Actor = Actor()
    time_nano: int = msgspec.field(default=0, name="timeNano")


class PullProgress(msgspec.Struct, frozen=True):
    """A message of a pull's progress stream."""

    id: str = ""
    """The layer, if the message is about a layer."""
    status: str = ""
    progress_detail: dict[str, Any] | None = msgspec.field(default=None, name="progressDetail")
