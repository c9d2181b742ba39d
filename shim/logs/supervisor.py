"""The server's side of container logs: decides which containers are followed, and which exits are held back.

The supervisor keeps the list of followed containers for the next log process, which finds its positions itself. Nothing
here waits for a disk.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from shim.domain.errors import FailedPrecondition, ShimError, Unavailable
from shim.logs.interface import ContainerLog, LogStats
from shim.logs.mailbox import Mailbox, Pending
from shim.logs.process import LogProcess
from shim.logs.protocol import NOT_FOLLOWED, Answer, Drain, Follow, Forget, Order, Reopen, Report

DRAIN_SECONDS = 10.0
"""Maximum time to hold back the exit of a container until its last output is written. The disk may be full."""
OPEN_SECONDS = 10.0
"""Maximum wait for the CRI log of a container that is about to start."""
REOPEN_SECONDS = 60.0
REPORT_SECONDS = 1.0

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Followed:
    log: ContainerLog
    ended: bool = False
    """Whether the container had exited when it was first followed."""
    run: int | None = None
    """The start time of the exited run; None while the container runs."""
    done: bool = False
    """Whether all output is written, so that the process no longer follows the container."""
    shown: bool = False
    """Whether the exit may be shown: all output is written, or writing has taken too long."""
    given_up_at: float = 0.0
    drain: Pending | None = None
    """The Drain of the exited run."""

    @property
    def held_back(self) -> bool:
        return self.run is not None and not self.shown

    @property
    def order(self) -> Follow:
        log = self.log
        return Follow(
            id=log.id, docker=log.docker, cri=log.cri, driver=log.driver, since=log.created_at, ended=self.ended
        )


class LogSupervisor:
    """Implementation of `shim.logs.interface.ContainerLogs`. Thread-safe."""

    def __init__(self, *, level: str, style: str, drain_seconds: float = DRAIN_SECONDS) -> None:
        """`level` and `style` are the settings of the server's log, to which the log process writes too."""
        self._drain_seconds = drain_seconds
        self._lock = threading.Lock()
        self._followed: dict[str, _Followed] = {}
        self._on_drained: Callable[[str], None] = lambda _: None
        self._mailbox = Mailbox()
        self._process = LogProcess(
            self._mailbox,
            arguments=("--log-level", level, "--log-format", style),
            first_orders=self._first_orders,
            tick=self._release_late,
        )

    def start(self, *, on_drained: Callable[[str], None]) -> None:
        """Start the log process. `on_drained` is called with the id of each container whose exit may be shown."""
        self._on_drained = on_drained
        self._process.start()

    def stop(self) -> None:
        """Stop the log process. The next server's log process copies later output."""
        self._mailbox.close()
        self._process.stop()

    def follow(self, container: ContainerLog) -> None:
        """Implement `shim.logs.interface.Drains.follow`."""
        with self._lock:
            self._ensure_followed(container)

    def follow_now(self, container: ContainerLog) -> str:
        """Implement `shim.logs.interface.ContainerLogs.follow_now`."""
        with self._lock:
            pending = self._ensure_followed(container) or self._mailbox.put(self._followed[container.id].order)
        try:
            what = f"open the log of container {container.id}"
            return self._mailbox.wait_answer(pending, seconds=OPEN_SECONDS, what=what).error
        except Unavailable as error:
            return str(error)

    def drained(self, container: ContainerLog, *, run: int) -> bool:
        """Implement `shim.logs.interface.Drains.drained`."""
        with self._lock:
            followed = self._followed.get(container.id)
            if followed is None and not container.docker:
                return True
            if followed is None or (followed.done and followed.run != run):
                followed = self._followed[container.id] = _Followed(container, ended=True)
                self._mailbox.put(followed.order)
            if followed.run != run:
                followed.run, followed.shown = run, False
                followed.given_up_at = time.monotonic() + self._drain_seconds
                then = partial(self._take_drained, container.id, run)
                followed.drain = self._mailbox.put(Drain(id=container.id), then=then)
            return followed.shown

    def reopen(self, container_id: str) -> None:
        """Implement `shim.logs.interface.ContainerLogs.reopen`."""
        what = f"reopen the log of container {container_id}"
        with self._lock:
            followed = self._followed.get(container_id)
            if followed is None or followed.done:
                raise FailedPrecondition(f"{what}: {NOT_FOLLOWED}")
            pending = self._mailbox.put(Reopen(id=container_id))
        answer = self._mailbox.wait_answer(pending, seconds=REOPEN_SECONDS, what=what)
        if answer.error == NOT_FOLLOWED:
            raise FailedPrecondition(f"{what}: {answer.error}")
        if answer.error:
            raise ShimError(f"{what}: {answer.error}")

    def forget(self, container_id: str) -> None:
        """Implement `shim.logs.interface.Drains.forget`."""
        with self._lock:
            if self._followed.pop(container_id, None) is not None:
                self._mailbox.put(Forget(id=container_id))

    def stats(self) -> LogStats:
        """Implement `shim.logs.interface.ContainerLogs.stats`."""
        pending = self._mailbox.put(Report())
        try:
            answer = self._mailbox.wait_answer(pending, seconds=REPORT_SECONDS, what="ask the log process")
            figures = answer.figures
        except Unavailable:
            figures = None
        with self._lock:
            held_back = sum(followed.held_back for followed in self._followed.values())
        return LogStats(pid=self._process.pid, restarts=self._process.restarts, held_back=held_back, figures=figures)

    def _ensure_followed(self, container: ContainerLog) -> Pending | None:
        """Queue a Follow and return it; None if the container is already followed. The caller holds the lock."""
        followed = self._followed.get(container.id)
        if not container.docker or (followed is not None and followed.run is None and followed.log == container):
            return None
        if followed is not None and followed.drain is not None:
            # A new log process would get this Drain after the Follow, and stop following the container.
            self._mailbox.withdraw(followed.drain)
        followed = self._followed[container.id] = _Followed(container)
        return self._mailbox.put(followed.order)

    def _first_orders(self) -> list[Order]:
        with self._lock:
            return [followed.order for followed in self._followed.values() if not followed.done]

    def _take_drained(self, container_id: str, run: int, answer: Answer) -> None:
        with self._lock:
            followed = self._followed.get(container_id)
            if followed is None or followed.run != run:
                return
            followed.done, shown, followed.shown = True, followed.shown, True
        if answer.error:
            log.warning("cannot write last output of container", container=container_id, error=answer.error)
        if not shown:
            self._on_drained(container_id)

    def _release_late(self) -> float | None:
        """Show exits that are overdue. Return the seconds until the next exit is overdue; None if there is none."""
        now = time.monotonic()
        with self._lock:
            held = {container_id: each for container_id, each in self._followed.items() if each.held_back}
            late = [container_id for container_id, each in held.items() if each.given_up_at <= now]
            for container_id in late:
                held[container_id].shown = True
        for container_id in late:
            log.warning("showing end of container before its last output is written", container=container_id)
            self._on_drained(container_id)
        return min((each.given_up_at - now for each in held.values() if each.held_back), default=None)
