"""The interface of logging for the rest of the server."""

from dataclasses import dataclass
from typing import Protocol

from shim.config.model import DockerLogDriver
from shim.logs.protocol import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLog:
    """The log files of one container: Docker's, and the CRI log to write."""

    id: str
    docker: str
    """Docker's file, absolute; empty if Docker has not reported it, and nothing can be followed."""
    cri: str
    created_at: int
    """Ns since the epoch."""
    driver: DockerLogDriver = "json-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """State of logging, for people."""

    pid: int
    """Of the log process, 0 while there is none."""
    restarts: int
    held_back: int
    """Containers that have ended and whose end is deferred until their last output is written."""
    figures: Figures | None
    """None when the process did not answer in time."""


class Drains(Protocol):
    """What the view needs: it defers the end of a container until its log is drained. No method waits."""

    def follow(self, container: ContainerLog) -> None:
        """Start to copy the output of a running container. Idempotent."""
        ...

    def drained(self, container: ContainerLog, *, run: int) -> bool:
        """Whether all output of a container that has ended is written, or the wait for it has timed out.

        `run` is when it started. If not, it is being written, and the callback of `start` is called at its end.
        """
        ...

    def forget(self, container_id: str) -> None:
        """Stop following a container that is gone. Idempotent."""
        ...


class ContainerLogs(Drains, Protocol):
    """Copies the output of containers into CRI log files. Thread-safe."""

    def follow_now(self, container: ContainerLog) -> str:
        """Create the CRI log and start to copy. Return why it cannot be written now, empty if it can."""
        ...

    def reopen(self, container_id: str) -> None:
        """Continue in a new file of the same name, which exists when this returns.

        Raise FailedPrecondition when the container is not followed.
        """
        ...

    def stats(self) -> LogStats:
        """Return the state of logging. Wait a moment for the answer of the log process."""
        ...
