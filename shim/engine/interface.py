"""What the shim asks of a Docker Engine, and the shapes of the answers.

Answers are read tolerantly: every field has a default, unknown fields are ignored and `null` is accepted where the
Engine writes it, since fields come and go between API 1.41 and the newest (source: the Engine API version history).
Times stay in the Engine's RFC 3339 text; `shim.view.translate` turns them into nanoseconds.

Every call is bound by the current `shim.deadline` scope and by the configured request timeout. Errors, all from
`shim.errors`: NotFound for an unknown id, Unavailable when the Engine cannot be reached, DeadlineExceeded and Cancelled
by the scope, InvalidArgument for what the Engine refuses as malformed, and the finer ones of `shim.engine.errors`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import msgspec

JsonObject = dict[str, Any]


class Answer(msgspec.Struct, frozen=True, rename="pascal"):
    """Base of all answers: Docker spells keys in PascalCase."""


class Runtime(msgspec.Struct, frozen=True):
    """One OCI runtime the daemon knows; Docker spells its keys small."""

    path: str = ""
    status: dict[str, str] | None = None
    """`org.opencontainers.runtime-spec.features` holds the runtime's features as JSON (API 1.44)."""


class DiscoveredDevice(Answer, frozen=True):
    """One device that a device driver of the Engine has found."""

    source: str = ""
    """The driver: `cdi`."""
    id: str = msgspec.field(default="", name="ID")


class EngineInfo(Answer, frozen=True):
    """`GET /info`, as far as the shim reads it."""

    id: str = msgspec.field(default="", name="ID")
    server_version: str = ""
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
    """None or empty where CDI is off (API 1.44)."""
    discovered_devices: list[DiscoveredDevice] | None = None
    """API 1.50."""
    live_restore_enabled: bool = False
    warnings: list[str] | None = None
    """What the daemon itself finds wrong with this machine, one sentence each."""


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
    """Name or uid, perhaps with `:group`; the image's where none was given."""
    labels: dict[str, str] | None = None
    stop_signal: str = ""


class LogSettings(Answer, frozen=True):
    """`HostConfig.LogConfig` of a container inspect."""

    type: str = ""
    """The logging driver."""


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
    log_config: LogSettings = LogSettings()
    group_add: list[str] | None = None
    init: bool | None = None
    """None where whoever made the container left it to the daemon."""


class ContainerInspect(Answer, frozen=True):
    """`GET /containers/{id}/json`."""

    id: str
    name: str = ""
    """With the leading slash Docker puts there."""
    created: str = ""
    image: str = ""
    """The image id."""
    state: ContainerState = ContainerState()
    config: ContainerSettings = ContainerSettings()
    host_config: HostSettings = HostSettings()
    mount_label: str = ""
    """SELinux label of the files it may use; empty where SELinux does not confine it."""
    log_path: str = ""
    """Empty until the container is started, and for other drivers than `json-file`."""
    resolv_conf_path: str = ""


class ContainerSummary(Answer, frozen=True):
    """One row of `GET /containers/json`."""

    id: str
    names: list[str] | None = None
    """Each with the leading slash Docker puts there."""
    image_id: str = msgspec.field(default="", name="ImageID")
    created: int = 0
    """Seconds since the epoch."""
    state: str = ""
    labels: dict[str, str] | None = None


class ImageSettings(Answer, frozen=True):
    """`Config` of an image inspect."""

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
    """Digests of the layers, uncompressed."""


class ImageInspect(Answer, frozen=True):
    """`GET /images/{ref}/json`."""

    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0
    config: ImageSettings | None = None
    created: str | None = None
    """RFC 3339; none for an image that does not say so."""
    architecture: str = ""
    variant: str = ""
    os: str = ""
    root_fs: RootFs = msgspec.field(default=RootFs(), name="RootFS")


class ImageSummary(Answer, frozen=True):
    """One row of `GET /images/json`."""

    id: str
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0
    labels: dict[str, str] | None = None


class ExecInspect(Answer, frozen=True):
    """`GET /exec/{id}/json`."""

    running: bool = False
    exit_code: int | None = None
    pid: int = 0
    """In the pid namespace of the daemon; 0 until the process runs."""


class PathKind(Enum):
    """What there is at a path."""

    FILE = "a regular file"
    DIRECTORY = "a directory"
    LINK = "a symbolic link"
    OTHER = "neither a file nor a directory"
    """A FIFO, socket or device."""


class PathStat(msgspec.Struct, frozen=True, rename="camel"):
    """What `HEAD /containers/{id}/archive` tells of a path, in the header `X-Docker-Container-Path-Stat`."""

    size: int = 0
    """Bytes of a regular file."""
    mode: int = 0
    """Go's `os.FileMode`."""
    link_target: str = ""
    """Of a symbolic link: where it leads in the end, absolute, never out of the container's root file system."""

    @property
    def kind(self) -> PathKind:
        """What it is."""
        return _KINDS.get(self.mode & _MODE_TYPE, PathKind.OTHER)


_MODE_TYPE = 0x8F280000
"""Directory, symlink, device, named pipe, socket, character device, irregular."""
_KINDS = {0: PathKind.FILE, 1 << 31: PathKind.DIRECTORY, 1 << 27: PathKind.LINK}


class Actor(Answer, frozen=True):
    """Whom an event is about."""

    id: str = msgspec.field(default="", name="ID")
    attributes: dict[str, str] | None = None


class Event(Answer, frozen=True):
    """One message of `GET /events`. Only `Type`, `Action` and `Actor` are read: API 1.52 dropped the rest."""

    type: str = ""
    action: str = ""
    actor: Actor = Actor()
    time_nano: int = msgspec.field(default=0, name="timeNano")


class RegistryAuth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `X-Registry-Auth` of a pull. Its repr shows no secret."""

    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""
    serveraddress: str = ""

    def __repr__(self) -> str:
        return f"RegistryAuth(serveraddress={self.serveraddress!r}, ...)"


class PullProgress(msgspec.Struct, frozen=True):
    """One message of a pull's progress stream."""

    id: str = ""
    """The layer, where the message is about one."""
    status: str = ""
    progress_detail: dict[str, Any] | None = msgspec.field(default=None, name="progressDetail")


class ProcessStream(Protocol):
    """Input and output of a process over a hijacked connection. One thread reads, one may write; any may `close`."""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1 for stdout, 2 for stderr; bytes) of a process without terminal until it has closed both."""
        ...

    def read(self) -> bytes:
        """Wait for the next output of a process with a terminal; empty at its end."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the process's stdin, waiting while it does not read."""
        ...

    def close_stdin(self) -> None:
        """Let the process read end of file on its stdin; its output still comes."""
        ...

    def close(self) -> None:
        """End the connection; a blocked reader or writer ends too. Idempotent, from any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """What of a container's process is to be attached."""

    stdin: bool
    stdout: bool
    stderr: bool
    detach_keys: str
    """Typed on a terminal, they end the connection; empty for Docker's default."""


class Engine(Protocol):
    """A Docker Engine. Thread-safe."""

    @property
    def api_version(self) -> tuple[int, int]:
        """The negotiated API version."""
        ...

    def ping(self) -> None:
        """Return when the Engine answers."""
        ...

    def info(self) -> EngineInfo:
        """Read what the Engine is and how it is set up."""
        ...

    def daemon_pid(self) -> int:
        """Pid of the process that owns the Engine's socket, 0 where it cannot be seen."""
        ...

    def create_container(self, *, name: str, body: JsonObject) -> str:
        """Create and return the id. NameConflict when the name is taken, NotFound when the image is missing."""
        ...

    def start_container(self, container_id: str) -> None:
        """Start it, and return when its process runs. Running already: nothing. Docker's words are kept on failure."""
        ...

    def stop_container(self, container_id: str, *, grace: int) -> None:
        """Send the stop signal, after `grace` seconds SIGKILL, and wait for the end. Already stopped: nothing."""
        ...

    def kill_container(self, container_id: str, *, signal: str) -> None:
        """Send a signal; FailedPrecondition when it does not run."""
        ...

    def wait_removed(self, container_id: str) -> None:
        """Wait until the container is gone; returns at once for one that does not exist. Bound by the scope alone."""
        ...

    def remove_container(self, container_id: str) -> None:
        """Remove it by force, with its anonymous volumes. RemovalInProgress while somebody else removes it."""
        ...

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        """Change the resources that `body` (`POST /containers/{id}/update`) names."""
        ...

    def inspect_container(self, container_id: str) -> ContainerInspect:
        """Read one container, by its id, a unique prefix or its name."""
        ...

    def list_containers(self) -> list[ContainerSummary]:
        """All containers of the Engine, in any state, whoever made them."""
        ...

    def stat_path(self, container_id: str, path: str) -> PathStat | None:
        """Look at an absolute path in a container's root file system; the container need not run.

        Links on the way are followed inside of it, a link at the end is told as one. None when nothing is there.
        """
        ...

    def archive(self, container_id: str, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Read the tar archive of a path, piece by piece, for the block; a link at its end is archived as one.

        Waits are bound by the scope alone. NotFound when nothing is there.
        """
        ...

    def create_exec(self, container_id: str, *, body: JsonObject) -> str:
        """Prepare an exec and return its id. FailedPrecondition when the container does not run."""
        ...

    def start_exec(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> AbstractContextManager[ProcessStream]:
        """Start a prepared exec for the block; leaving it ends the connection, not the process.

        `tty` as in the body it was prepared with; `size` is the width and height of its terminal (API 1.42).
        """
        ...

    def resize_exec(self, exec_id: str, *, width: int, height: int) -> None:
        """Set the size of an exec's terminal, in characters. FailedPrecondition when it does not run."""
        ...

    def attach_container(self, container_id: str, *, options: AttachOptions) -> AbstractContextManager[ProcessStream]:
        """Connect to a running container's process for the block, with none of its earlier output."""
        ...

    def resize_container(self, container_id: str, *, width: int, height: int) -> None:
        """Set the size of a container's terminal, in characters. FailedPrecondition when it does not run."""
        ...

    def inspect_exec(self, exec_id: str) -> ExecInspect:
        """Read the state of an exec; Docker forgets it some time after its end."""
        ...

    def list_images(self) -> list[ImageSummary]:
        """All images, intermediate layers left out."""
        ...

    def inspect_image(self, reference: str) -> ImageInspect:
        """Read one image, by id, tag or digest. NotFound when it is not here."""
        ...

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        """Pull, and report each progress message; returns when the image is complete.

        The current scope bounds it, the request timeout does not. RegistryUnavailable and RegistryDenied (see
        `shim.engine.errors`) tell the registry's side of a failure.
        """
        ...

    def remove_image(self, reference: str) -> None:
        """Untag or delete by force. NotFound when unknown."""
        ...

    def disk_usage(self) -> Mapping[str, Any]:
        """`GET /system/df`, images only where the Engine can (API 1.42)."""
        ...

    def events(self, *, since: int | None) -> AbstractContextManager[Iterator[Event]]:
        """Container, image and daemon events from `since` (ns since the epoch, inclusive) on, until closed.

        The iterator ends with Unavailable when the connection is lost; leaving the block closes it, also while
        another thread waits for the next event.
        """
        ...

    def close(self) -> None:
        """Close the idle connections; calls under way end by themselves. Idempotent."""
        ...
