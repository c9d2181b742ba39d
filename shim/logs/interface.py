"""The interface of container logs for the rest of the server."""

from dataclasses import dataclass
from typing import Protocol

from shim.config.model import DockerLogDriver
from shim.logs.protocol import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLog:
    """The log files of a container: Docker's file, and the CRI log to write."""

    id: str
    docker: str
    """Absolute path of Docker's file; empty if Docker has not reported it, so that it cannot be followed."""
    cri: str
    created_at: int
    """Ns since the epoch."""
    driver: DockerLogDriver = "json-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """State of logging, for the state dump."""

    pid: int
    """Pid of the log process; 0 while it does not run."""
    restarts: int
    held_back: int
    """Number of containers whose exit is deferred until their last output is written."""
    figures: Figures | None
    """None if the log process did not answer in time."""


class Drains(Protocol):
    """Lets the view defer the exit of a container until its log is drained. No method waits."""

    def follow(self, container: ContainerLog) -> None:
        """Start to copy the output of a running container. Idempotent."""
        ...

    def drained(self, container: ContainerLog, *, run: int) -> bool:
        """Return whether all output of an exited container is written, or the wait for it has timed out.

        If False, the output is being written, and the callback of `start` is called at the end. `run` is the time when
        the container was started.
        """
        ...

    def forget(self, container_id: str) -> None:
        """Stop following a removed container. Idempotent."""
        ...


class ContainerLogs(Drains, Protocol):
    """Copies the output of containers into CRI log files. Thread-safe."""

    def follow_now(self, container: ContainerLog) -> str:
        """Create the CRI log and start to copy. Return why the log cannot be written; empty if it can be."""
        ...

    def reopen(self, container_id: str) -> None:
        """Continue in a new file of the same name, which exists when this returns.

        Raise FailedPrecondition if the container is not followed, and ShimError if the file cannot be created.
        """
        ...

    def stats(self) -> LogStats:
        """Return the state of logging. Wait up to a second for the answer of the log process."""
        ...
