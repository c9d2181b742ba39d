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
    """Absolute path of Docker's file. Empty if Docker has not reported it; the log cannot be followed then."""
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
    """Number of containers whose exit is held back until their last output is written."""
    figures: Figures | None
    """None if the log process did not answer in time."""


class Drains(Protocol):
    """Lets the view hold back the exit of a container until its log is drained. No method waits."""

    def follow(self, container: ContainerLog) -> None:
        """Start to copy the output of a running container. Idempotent."""
        ...

    def drained(self, container: ContainerLog, *, run: int) -> bool:
        """Return whether all output of an exited container is written, or writing has taken too long.

        If False, the output is still being written, and the callback of `start` is called later. `run` is the start
        time of the container.
        """
        ...

    def forget(self, container_id: str) -> None:
        """Stop following a removed container. Idempotent."""
        ...


class ContainerLogs(Drains, Protocol):
    """Copies the output of containers into CRI log files. Thread-safe."""

    def follow_now(self, container: ContainerLog) -> str:
        """Create the CRI log and start to copy. Return the error if the log cannot be written, else ""."""
        ...

    def reopen(self, container_id: str) -> None:
        """Create a new file of the same name, and continue in it.

        Raise FailedPrecondition if the container is not followed, and ShimError if the file cannot be created.
        """
        ...

    def stats(self) -> LogStats:
        """Return the state of logging. Wait up to a second for the answer of the log process."""
        ...
