"""Logging in memory: records calls, and can hold back the end of logs until the test releases them."""

from collections.abc import Callable

from shim.domain.errors import FailedPrecondition
from shim.logs.interface import ContainerLog, LogStats
from shim.logs.protocol import Figures


class FakeLogs:
    """See `shim.logs.interface.ContainerLogs`. All output counts as written at once unless `holding`."""

    def __init__(self) -> None:
        self.holding = False
        self.problem = ""
        """Why no log can be written."""
        self.followed: dict[str, ContainerLog] = {}
        self.reopened: list[str] = []
        self.held: dict[str, int] = {}
        self.figures: Figures | None = None
        """The log process's answer; None while it does not answer."""
        self.on_drained: Callable[[str], None] = lambda _: None

    def release(self, container_id: str) -> None:
        """Let all output of a container count as written."""
        self.held[container_id] = 0
        self.on_drained(container_id)

    def follow(self, container: ContainerLog) -> None:
        self.followed[container.id] = container

    def follow_now(self, container: ContainerLog) -> str:
        self.follow(container)
        return self.problem

    def drained(self, container: ContainerLog, *, run: int) -> bool:
        return not (self.holding and self.held.setdefault(container.id, run))

    def reopen(self, container_id: str) -> None:
        if container_id not in self.followed:
            raise FailedPrecondition(f"container {container_id} is not followed")
        self.reopened.append(container_id)

    def forget(self, container_id: str) -> None:
        self.followed.pop(container_id, None)

    def stats(self) -> LogStats:
        held = sum(run > 0 for run in self.held.values())
        return LogStats(pid=1, restarts=0, held_back=held, figures=self.figures)
