"""The operations of a Docker Engine that the shim uses; `shim.engine.answers` has the shapes of the answers.

Every call is bound by the current `shim.base.deadline` scope and by the configured request timeout. Errors, all from
`shim.domain.errors`: NotFound for an unknown id, Unavailable when the Engine cannot be reached, DeadlineExceeded and
Cancelled by the scope, InvalidArgument for what the Engine refuses as malformed, and the finer ones of
`shim.engine.errors`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from shim.engine.answers import (
    ContainerInspect,
    ContainerSummary,
    EngineInfo,
    Event,
    ExecInspect,
    ImageInspect,
    ImageSummary,
    PathStat,
    PullProgress,
)

JsonObject = dict[str, Any]

CONTAINER_ACTIONS = frozenset({"create", "start", "die", "oom", "rename", "update", "destroy"})
"""Container events after which an inspect may differ, or fail.

The CRI knows no pause; kill, stop and restart come with a die or start; exec_* and health_status, the bulk of all
events on a node with probes, change nothing in an inspect.
"""
IMAGE_ACTIONS = frozenset({"pull", "load", "import", "tag", "untag", "delete", "create"})
"""Events of changed images. All name the image by its id, but for a pull, which names what was pulled. BuildKit sends
them since Engine 25.0."""


class RegistryAuth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The `X-Registry-Auth` of a pull. Its repr shows no secret."""

    username: str = ""
    password: str = ""
    identitytoken: str = ""
    registrytoken: str = ""
    serveraddress: str = ""

    def __repr__(self) -> str:
        return f"RegistryAuth(serveraddress={self.serveraddress!r}, ...)"


class ProcessStream(Protocol):
    """Input and output of a process over a hijacked connection. One thread reads, one may write; any may `close`."""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1 for stdout, 2 for stderr; bytes) of a process without terminal until it has closed both."""
        ...

    def read(self) -> bytes:
        """Wait for the next output of a process with a terminal; return nothing at its end."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the process's stdin, waiting while it does not read."""
        ...

    def close_stdin(self) -> None:
        """Close the process's stdin; its output still comes."""
        ...

    def close(self) -> None:
        """End the connection; a blocked reader or writer ends too. Idempotent, from any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """Which streams of a container's process to attach."""

    stdin: bool
    stdout: bool
    stderr: bool
    detach_keys: str
    """Typed on a terminal, they end the connection; empty for Docker's default."""


class Engine(Protocol):
    """A Docker Engine. Thread-safe."""

    @property
    def api_version(self) -> tuple[int, int]:
        """API version negotiated with the daemon."""
        ...

    @property
    def answered_at(self) -> float:
        """Time of the Engine's last complete answer to any call by the monotonic clock, -inf without one."""
        ...

    def ping(self) -> None:
        """Return when the Engine answers."""
        ...

    def check_components(self) -> None:
        """Check that the Engine reads the versions of containerd and runc, for which it takes no lock."""
        ...

    def info(self) -> EngineInfo:
        """Read the Engine's description and configuration."""
        ...

    def daemon_pid(self) -> int:
        """Return the pid of the process that owns the Engine's socket, 0 if it is not visible."""
        ...

    def create_container(self, *, name: str, body: JsonObject) -> str:
        """Create a container and return its id. Raise NameConflict or, when the image is missing, NotFound."""
        ...

    def start_container(self, container_id: str) -> None:
        """Start it and return when its process runs. A running container is fine. Errors keep Docker's text."""
        ...

    def stop_container(self, container_id: str, *, grace: int) -> None:
        """Send the stop signal, after `grace` seconds SIGKILL, and wait for the end. A stopped container is fine."""
        ...

    def kill_container(self, container_id: str, *, signal: str) -> None:
        """Send a signal. Raise FailedPrecondition when it does not run."""
        ...

    def wait_removed(self, container_id: str) -> None:
        """Wait until the container is gone. Return at once if there is none. Only the scope bounds the wait."""
        ...

    def remove_container(self, container_id: str) -> None:
        """Remove it by force, with its anonymous volumes. Raise RemovalInProgress while it is being removed."""
        ...

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        """Change the resources that `body` (`POST /containers/{id}/update`) names."""
        ...

    def inspect_container(self, container_id: str) -> ContainerInspect:
        """Return one container, by its id, a unique prefix or its name."""
        ...

    def list_containers(self) -> list[ContainerSummary]:
        """Return all containers of the Engine, in any state and of any creator."""
        ...

    def stat_path(self, container_id: str, path: str) -> PathStat | None:
        """Return what is at an absolute path in a container's root file system; the container need not run.

        Links on the way are followed inside of it, a link at the end is reported as one. None when nothing is there.
        """
        ...

    def archive(self, container_id: str, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Yield the tar archive of a path, piece by piece, for the block; a link at its end is archived as one.

        Only the scope bounds the waits. Raise NotFound when nothing is there.
        """
        ...

    def create_exec(self, container_id: str, *, body: JsonObject) -> str:
        """Create an exec and return its id. Raise FailedPrecondition when the container does not run."""
        ...

    def start_exec(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> AbstractContextManager[ProcessStream]:
        """Start an exec for the block; leaving it closes the connection, not the process.

        `tty` as in the body it was created with; `size` is the width and height of its terminal (API 1.42). Raise
        FailedPrecondition when the container does not run any more.
        """
        ...

    def resize_exec(self, exec_id: str, *, width: int, height: int) -> None:
        """Set the size of an exec's terminal, in characters. Raise FailedPrecondition when it does not run."""
        ...

    def attach_container(self, container_id: str, *, options: AttachOptions) -> AbstractContextManager[ProcessStream]:
        """Attach to a running container's process for the block, without its earlier output."""
        ...

    def resize_container(self, container_id: str, *, width: int, height: int) -> None:
        """Set the size of a container's terminal, in characters. Raise FailedPrecondition when it does not run."""
        ...

    def inspect_exec(self, exec_id: str) -> ExecInspect:
        """Return the state of an exec; Docker forgets it some time after its end."""
        ...

    def list_images(self) -> list[ImageSummary]:
        """Return all images, without intermediate layers."""
        ...

    def inspect_image(self, reference: str) -> ImageInspect:
        """Return one image, by id, tag or digest, with its size on disk. Raise NotFound when it is not on the node."""
        ...

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        """Pull an image and report each progress message. Return when the image is complete.

        The current scope bounds it, the request timeout does not. Raise RegistryUnavailable or RegistryDenied (of
        `shim.engine.errors`) for failures of the registry.
        """
        ...

    def remove_image(self, reference: str) -> None:
        """Delete an image by its id, or take a name away; the last name takes the image with it. Never by force.

        Raise NotFound when it is unknown, and FailedPrecondition while a container in any state uses it, except for one
        name of several. By its id also when it has several tags or repositories, or other images were built from it.
        """
        ...

    def events(self, *, since: int | None) -> AbstractContextManager[Iterator[Event]]:
        """Yield events of CONTAINER_ACTIONS and IMAGE_ACTIONS from `since` (ns since the epoch, inclusive) on.

        The iterator raises Unavailable when the connection is lost; leaving the block closes it, also while another
        thread waits for the next event.
        """
        ...

    def close(self) -> None:
        """Close the idle connections; calls under way end by themselves. Idempotent."""
        ...
