"""What the rest of the server asks of logging."""

from dataclasses import dataclass
from typing import Protocol

from shim.config.model import DockerLogDriver
from shim.logs.protocol import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLog:
    """One container's output: where Docker puts it, and where it is to go."""

    id: str
    docker: str
    """Docker's file, absolute; empty where Docker has not told, and nothing can be followed."""
    cri: str
    created_at: int
    """Ns since the epoch."""
    driver: DockerLogDriver = "json-file"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStats:
    """How logging does, for people."""

    pid: int
    """Of the log process, 0 while there is none."""
    restarts: int
    held_back: int
    """Containers that have ended and whose last output is being written."""
    figures: Figures | None
    """None when the process did not answer in time."""


class Drains(Protocol):
    """What the view asks: it holds the end of a container back until its output is written. Nothing here waits."""

    def follow(self, of: ContainerLog) -> None:
        """Have the output of a running container copied. Idempotent."""
        ...

    def drained(self, of: ContainerLog, *, run: int) -> bool:
        """Whether all output of a container that has ended is written, or has been waited for long enough.

        `run` is when it started. If not, it is being written, and whoever started logging is told of its end.
        """
        ...

    def forget(self, container_id: str) -> None:
        """Say that a container is gone. Idempotent."""
        ...


class ContainerLogs(Drains, Protocol):
    """Copies what containers write into the CRI's log files. Thread-safe."""

    def follow_now(self, of: ContainerLog) -> str:
        """Have the CRI log made, and the output copied. Gives why it cannot be written now, empty if it can."""
        ...

    def reopen(self, container_id: str) -> None:
        """Go on in a new file under the same name, which is there when this returns.

        FailedPrecondition when the container is not followed.
        """
        ...

    def stats(self) -> LogStats:
        """Look how it does; waits a moment for an answer."""
        ...
