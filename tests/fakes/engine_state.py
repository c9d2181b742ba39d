"""The objects of a `FakeEngine`: containers, images and execs, and their form in Docker's answers."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from shim.engine.answers import (
    ContainerInspect,
    ContainerSettings,
    ContainerState,
    ContainerSummary,
    HostSettings,
    ImageInspect,
    ImageSettings,
    ImageSummary,
    MountPoint,
)
from shim.engine.interface import JsonObject
from tests.fakes.engine_files import FakeFile

NEVER = "0001-01-01T00:00:00Z"
"""Docker's zero time."""


def rfc3339(nanoseconds: int) -> str:
    """Format a time as Docker does, with nine digits."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


def shown_detach_keys(keys: str) -> str:
    """Format detach keys as the inspect of an exec does; of control keys it supports only ctrl-@."""
    return base64.b64encode(b"".join(b"\0" if key == "ctrl-@" else key.encode() for key in keys.split(","))).decode()


def hex_id(seed: str) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()


@dataclass(kw_only=True)
class FakeImage:
    """A local image, or an image of the fake registry."""

    id: str
    tags: list[str]
    digests: list[str]
    settings: ImageSettings
    size: int
    files: dict[str, FakeFile] = field(default_factory=dict)
    """By absolute path."""
    architecture: str = "amd64"
    parent: str = ""

    def inspect(self) -> ImageInspect:
        return ImageInspect(
            id=self.id,
            repo_tags=self.tags[:],
            repo_digests=self.digests[:],
            size=self.size,
            parent=self.parent,
            config=self.settings,
            architecture=self.architecture,
        )

    def summary(self) -> ImageSummary:
        return ImageSummary(
            id=self.id,
            repo_tags=self.tags[:],
            repo_digests=self.digests[:],
            size=self.size,
            parent_id=self.parent,
        )

    def is_called(self, reference: str) -> bool:
        digits = reference.removeprefix("sha256:")
        if len(digits) >= 4 and self.id.removeprefix("sha256:").startswith(digits):
            return True
        return familiar(reference) in self.tags + self.digests


def familiar(reference: str) -> str:
    """Return a reference as Docker shows it: without Docker Hub's domain and `library/`, with `latest`."""
    for prefix in ("docker.io/library/", "docker.io/"):
        reference = reference.removeprefix(prefix)
    last = reference.rpartition("/")[2]
    return reference if ":" in last or "@" in last else f"{reference}:latest"


class FakeInput:
    """Input of a process that it has not read yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False

    def take(self) -> bytes:
        taken = bytes(self.data)
        self.data.clear()
        return taken


@dataclass(kw_only=True)
class FakeContainer:
    """A container. Times are ns since the epoch, 0 for never."""

    id: str
    name: str
    body: JsonObject
    image: FakeImage
    created: int
    status: str = "created"
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    oom_killed: bool = False
    started: int = 0
    finished: int = 0
    stdin: FakeInput = field(default_factory=FakeInput)
    output: Sequence[tuple[int, bytes]] = ()
    """Output of its process for the first attached client, before it echoes."""
    attached: int = 0
    """Number of attached clients."""
    size: tuple[int, int] = (0, 0)
    """Of its terminal: width, height."""
    mount_label: str = ""

    @property
    def running(self) -> bool:
        return self.status in ("running", "paused")

    @property
    def labels(self) -> dict[str, str]:
        """The image's labels, overridden by the container's."""
        return {**(self.image.settings.labels or {}), **(self.body.get("Labels") or {})}

    @property
    def host(self) -> JsonObject:
        return self.body.setdefault("HostConfig", {})  # type: ignore[no-any-return]

    def inspect(self) -> ContainerInspect:
        directory = f"/var/lib/docker/containers/{self.id}"
        reported = self.started and (self.host.get("LogConfig") or {}).get("Type") != "local"
        state = ContainerState(
            status=self.status,
            running=self.running,
            oom_killed=self.oom_killed,
            pid=self.pid,
            exit_code=self.exit_code,
            error=self.error,
            started_at=rfc3339(self.started) if self.started else NEVER,
            finished_at=rfc3339(self.finished) if self.finished else NEVER,
        )
        return ContainerInspect(
            id=self.id,
            name=f"/{self.name}",
            created=rfc3339(self.created),
            image=self.image.id,
            path=next(iter(self._command()), ""),
            args=self._command()[1:],
            state=state,
            config=ContainerSettings(
                image=str(self.body.get("Image", "")),
                user=str(self.body.get("User") or self.image.settings.user),
                labels=self.labels,
                stop_signal=self.body.get("StopSignal") or self.image.settings.stop_signal,
                env=[*(self.image.settings.env or []), *(self.body.get("Env") or [])],
            ),
            host_config=msgspec.convert(_without_nulls(self.host), HostSettings),
            mount_label=self.mount_label,
            mounts=[*map(_of_bind, self.host.get("Binds") or []), *map(_of_mount, self.host.get("Mounts") or [])],
            log_path=f"{directory}/{self.id}-json.log" if reported else "",
            resolv_conf_path=f"{directory}/resolv.conf" if self.started else "",
        )

    def _command(self) -> list[str]:
        given, of_image = self.body, self.image.settings
        entrypoint = given.get("Entrypoint") or of_image.entrypoint or []
        words = given.get("Cmd") or ([] if given.get("Entrypoint") else of_image.cmd) or []
        return [*entrypoint, *words]

    def summary(self) -> ContainerSummary:
        return ContainerSummary(
            id=self.id,
            names=[f"/{self.name}"],
            image_id=self.image.id,
            created=self.created // 10**9,
            state=self.status,
            labels=self.labels,
            host_config=HostSettings(network_mode=self.host.get("NetworkMode") or ""),
        )


def _of_bind(text: str) -> MountPoint:
    source, destination, *options = text.split(":")
    return MountPoint(source=source, destination=destination, rw="ro" not in options, propagation="rprivate")


def _of_mount(mount: JsonObject) -> MountPoint:
    return MountPoint(
        source=mount.get("Source", ""),
        destination=mount["Target"],
        rw=not mount.get("ReadOnly"),
        propagation="rprivate",
    )


def _without_nulls(value: JsonObject) -> JsonObject:
    return {key: item for key, item in value.items() if item is not None}


@dataclass(kw_only=True)
class ExecScript:
    """The behaviour of an exec's command: its output, then its exit code."""

    frames: Sequence[tuple[int, bytes]] = ()
    exit_code: int = 0
    pid: int = 0
    """Pid of a real process, if the test has one to be killed."""
    endless: bool = False
    """Whether the process runs after its output until `exit_exec`, or until its container ends."""
    echo: bool = False
    """Whether the process echoes its input like `cat`, until the input ends."""
    prints_size: bool = False
    """Whether the process prints the size of its terminal like `stty size` on its first input, and exits."""


@dataclass(kw_only=True)
class FakeExec:
    """A prepared exec."""

    id: str
    container_id: str
    body: JsonObject
    script: ExecScript
    running: bool = False
    exit_code: int | None = None
    stdin: FakeInput = field(default_factory=FakeInput)
    size: tuple[int, int] = (0, 0)
    """Of its terminal: width, height."""
    unread: Iterator[tuple[int, bytes]] = field(init=False)
    """Output that has not been read yet."""
    taken: int = 0
    """Number of frames that have been read."""

    def __post_init__(self) -> None:
        self.unread = iter(self.script.frames)
