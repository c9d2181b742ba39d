"""What the shim asks of a Docker Engine; `shim.engine.answers` has the shapes of what it answers.

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

    def check_components(self) -> None:
        """Return when the Engine has asked containerd and runc for their versions, for which it takes no lock."""
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
        FailedPrecondition when the container does not run any more.
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

    def events(self, *, since: int | None) -> AbstractContextManager[Iterator[Event]]:
        """Container, image and daemon events from `since` (ns since the epoch, inclusive) on, until closed.

        The iterator ends with Unavailable when the connection is lost; leaving the block closes it, also while
        another thread waits for the next event.
        """
        ...

    def close(self) -> None:
        """Close the idle connections; calls under way end by themselves. Idempotent."""
        ...
