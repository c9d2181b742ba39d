"""The operations of a Docker Engine that the server uses; `shim.engine.answers` has the shapes of the answers.

The current `shim.base.deadline` scope and the configured request timeout bound every call. Calls raise the errors of
`shim.domain.errors`: NotFound for an unknown id, Unavailable if the Engine cannot be reached, DeadlineExceeded and
Cancelled from the scope, InvalidArgument for a malformed request, and the classes of `shim.engine.errors`.
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
"""Container events that may change an inspect.

The CRI has no pause; kill, stop and restart come with a die or start. exec_* and health_status, which are most events
on a node with probes, do not change an inspect.
"""
IMAGE_ACTIONS = frozenset({"pull", "load", "import", "tag", "untag", "delete", "create"})
"""Events of changed images. A pull names the reference, other events the image id. BuildKit sends them from Engine 25.0
on."""


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
    """The streams of a process over a hijacked connection. One thread reads, one may write; any thread may `close`."""

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield (1 for stdout, 2 for stderr; bytes) of a process without a terminal until it has closed both."""
        ...

    def read(self) -> bytes:
        """Wait for the next output of a process with a terminal; empty at its end."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` to the process's stdin; wait while the process does not read."""
        ...

    def close_stdin(self) -> None:
        """Close the process's stdin; output still arrives."""
        ...

    def close(self) -> None:
        """End the connection and a blocked reader or writer. Idempotent, from any thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachOptions:
    """Which streams of a container's process to attach."""

    stdin: bool
    stdout: bool
    stderr: bool
    detach_keys: str
    """The keys that end the connection when typed on a terminal; empty for Docker's default."""


class Engine(Protocol):
    """A Docker Engine. Thread-safe."""

    @property
    def api_version(self) -> tuple[int, int]:
        """The API version negotiated with the daemon."""
        ...

    @property
    def answered_at(self) -> float:
        """When the Engine last answered a call completely, by the monotonic clock; -inf without a connection to it."""
        ...

    def ping(self) -> None:
        """Return when the Engine answers."""
        ...

    def info(self) -> EngineInfo:
        """Read the Engine's description and configuration."""
        ...

    def daemon_pid(self) -> int:
        """Return the pid of the process that owns the Engine's socket, 0 if it is not visible."""
        ...

    def create_container(self, *, name: str, body: JsonObject) -> str:
        """Create a container and return its id. Raise NameConflict, or NotFound if the image is missing."""
        ...

    def start_container(self, container_id: str) -> None:
        """Start a container and return once its process runs. Accept a running container; errors keep Docker's text."""
        ...

    def stop_container(self, container_id: str, *, grace: int) -> None:
        """Send the stop signal, after `grace` seconds SIGKILL, and wait for the exit. Accept a stopped container."""
        ...

    def kill_container(self, container_id: str, *, signal: str) -> None:
        """Send a signal. Raise FailedPrecondition if the container is not running."""
        ...

    def wait_removed(self, container_id: str) -> None:
        """Wait until the container is gone, or return at once if it is missing. Only the scope bounds the wait."""
        ...

    def remove_container(self, container_id: str) -> None:
        """Remove a container by force, with its anonymous volumes. Raise RemovalInProgress if it is being removed."""
        ...

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        """Change the resources in `body` (`POST /containers/{id}/update`)."""
        ...

    def inspect_container(self, container_id: str) -> ContainerInspect:
        """Return a container, by its id, a unique prefix or its name."""
        ...

    def list_containers(self) -> list[ContainerSummary]:
        """Return all containers of the Engine, in any state and of any creator."""
        ...

    def stat_path(self, container_id: str, path: str) -> PathStat | None:
        """Return the kind and size of the file at an absolute path in a container, running or not; None if missing.

        Links on the way are followed inside the container's root file system; a link at the end is reported as a link.
        """
        ...

    def archive(self, container_id: str, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Yield the tar archive of a path, piece by piece, for the block; a link at the end is archived as a link.

        Only the scope bounds the waits. Raise NotFound if the path is missing.
        """
        ...

    def create_exec(self, container_id: str, *, body: JsonObject) -> str:
        """Create an exec and return its id. Raise FailedPrecondition if the container is not running."""
        ...

    def start_exec(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> AbstractContextManager[ProcessStream]:
        """Start an exec for the block; leaving the block closes the connection but does not end the process.

        `tty` is as in the body of its create; `size` is the width and height of its terminal (API 1.42). Raise
        FailedPrecondition if the container is no longer running.
        """
        ...

    def resize_exec(self, exec_id: str, *, width: int, height: int) -> None:
        """Set the size of an exec's terminal, in characters. Raise FailedPrecondition if it is not running."""
        ...

    def attach_container(self, container_id: str, *, options: AttachOptions) -> AbstractContextManager[ProcessStream]:
        """Attach to a running container's process for the block, without its earlier output."""
        ...

    def resize_container(self, container_id: str, *, width: int, height: int) -> None:
        """Set the size of a container's terminal, in characters. Raise FailedPrecondition if it is not running."""
        ...

    def inspect_exec(self, exec_id: str) -> ExecInspect:
        """Return the state of an exec; Docker forgets an exec some time after its end."""
        ...

    def list_images(self) -> list[ImageSummary]:
        """Return all images, without intermediate layers."""
        ...

    def inspect_image(self, reference: str) -> ImageInspect:
        """Return an image, by id, tag or digest, with its size on disk. Raise NotFound if it is not on the node."""
        ...

    def pull_image(
        self, reference: str, *, auth: RegistryAuth | None, progress: Callable[[PullProgress], None]
    ) -> None:
        """Pull an image and report each progress message. Return once the image is complete.

        Only the current scope bounds the pull. Raise RegistryUnavailable or RegistryDenied (`shim.engine.errors`) for
        failures of the registry.
        """
        ...

    def remove_image(self, reference: str) -> None:
        """Remove an image by its id, or one of its names; removing the last name removes the image. Never by force.

        Raise NotFound for an unknown image. Raise FailedPrecondition while a container in any state uses the image,
        unless another name is left. By id, raise it also if the image has several tags or repositories, or if other
        images were built from it.
        """
        ...

    def events(self, *, since: int | None) -> AbstractContextManager[Iterator[Event]]:
        """Yield events of CONTAINER_ACTIONS and IMAGE_ACTIONS from `since` (ns since the epoch, inclusive) on.

        The iterator raises Unavailable when the connection is lost. Leaving the block closes the connection, also while
        another thread waits for the next event.
        """
        ...

    def close(self) -> None:
        """Close the idle connections; calls in flight go on. Idempotent."""
        ...
