"""The server's end of the log process: starts it, starts it again when it dies, and gives it orders.

What is followed is kept here, so a new process is told all of it; where to go on it finds for itself. Nothing here
waits for a disk.
"""

import itertools
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

import shim
from shim import deadline
from shim.errors import FailedPrecondition, ShimError, Unavailable
from shim.logs.interface import ContainerLog, LogStats
from shim.logs.protocol import MAX_PACKET, Answer, Drain, Envelope, Follow, Forget, Order, Reopen, Report

DRAIN_SECONDS = 10.0
"""How long the end of a container may be held back for its last output: a disk may be full."""
OPEN_SECONDS = 10.0
"""Bound on waiting for the CRI log of a container that is about to start."""
REOPEN_SECONDS = 60.0
REPORT_SECONDS = 1.0
RESTART_LEAST = 0.05
"""Seconds from the death of the process to its successor; doubled each time it dies at once."""
RESTART_MOST = 5.0
STABLE_SECONDS = 2.0
"""A process that lived so long did not die at once."""
STOP_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Followed:
    log: ContainerLog
    ended: bool = False
    run: int | None = None
    """The run whose end has been told, by the time of its start; None while it runs."""
    done: bool = False
    """Everything is written; the process follows it no more."""
    shown: bool = False
    """Its end is not held back: it is done, or was given up."""
    given_up_at: float = 0.0


@dataclass(slots=True, eq=False)
class _Pending:
    ticket: int
    order: Order
    then: Callable[[Answer], None] | None
    answer: Answer | None = None


class LogSupervisor:
    """Logging as the rest of the server sees it. Thread-safe."""

    def __init__(self, *, level: str, style: str, drain_seconds: float = DRAIN_SECONDS) -> None:
        """`level` and `style` are those of the server's own log, in which the process writes."""
        self._words = ("--log-level", level, "--log-format", style)
        self._drain_seconds = drain_seconds
        self._changed = threading.Condition()
        self._followed: dict[str, _Followed] = {}
        self._pending: dict[int, _Pending] = {}
        self._outbox: deque[_Pending] = deque()
        self._tickets = itertools.count(1)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopping = threading.Event()
        self._on_drained: Callable[[str], None] = lambda _: None
        self._child: subprocess.Popen[bytes] | None = None
        self._restarts = 0
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self, *, on_drained: Callable[[str], None]) -> None:
        """Start the process. `on_drained` is told each container whose end need not be held back any longer."""
        self._on_drained = on_drained
        self._thread.start()

    def stop(self) -> None:
        """End the process. What containers write from now on, the next one copies."""
        self._stopping.set()
        self._awake()
        self._thread.join()
        os.close(self._wake)

    # What the rest of the server asks for

    def follow(self, of: ContainerLog) -> None:
        """Have the output of a running container copied. Idempotent; does not wait."""
        with self._changed:
            self._ensure_followed(of)

    def follow_now(self, of: ContainerLog) -> str:
        """Have the CRI log made, and the output copied. Gives why it cannot be written now, empty if it can."""
        with self._changed:
            pending = self._ensure_followed(of) or self._order(_follow_order(self._followed[of.id]))
        try:
            return self._wait_answer(pending, seconds=OPEN_SECONDS, what=f"open the log of container {of.id}").error
        except Unavailable as error:
            return str(error)

    def drained(self, of: ContainerLog, *, run: int) -> bool:
        """Whether all output of a container that has ended is written, or has been waited for long enough.

        `run` is when it started. If not, it is being written, and `on_drained` will be called.
        """
        with self._changed:
            followed = self._followed.get(of.id)
            if followed is None and not of.docker:
                return True
            if followed is None or (followed.done and followed.run != run):
                followed = self._followed[of.id] = _Followed(of, ended=True)
                self._order(_follow_order(followed))
            if followed.run != run:
                followed.run, followed.shown = run, False
                followed.given_up_at = time.monotonic() + self._drain_seconds
                self._order(Drain(id=of.id), then=lambda answer: self._take_drained(of.id, run=run, answer=answer))
            return followed.shown

    def reopen(self, container_id: str) -> None:
        """Go on in a new file. FailedPrecondition when the container is not followed."""
        with self._changed:
            followed = self._followed.get(container_id)
            if followed is None or followed.done:
                raise FailedPrecondition(f"reopen the log of container {container_id}: its output is not followed")
            pending = self._order(Reopen(id=container_id))
        what = f"reopen the log of container {container_id}"
        answer = self._wait_answer(pending, seconds=REOPEN_SECONDS, what=what)
        if answer.error:
            raise ShimError(f"{what}: {answer.error}")

    def forget(self, container_id: str) -> None:
        """Say that a container is gone. Idempotent; does not wait."""
        with self._changed:
            if self._followed.pop(container_id, None) is not None:
                self._order(Forget(id=container_id))

    def stats(self) -> LogStats:
        """Look how it does; waits a moment for the process to answer."""
        with self._changed:
            pending = self._order(Report())
        try:
            figures = self._wait_answer(pending, seconds=REPORT_SECONDS, what="ask the log process").figures
        except Unavailable:
            figures = None
        with self._changed:
            held = sum(followed.run is not None and not followed.shown for followed in self._followed.values())
            child = self._child
        return LogStats(pid=child.pid if child else 0, restarts=self._restarts, held_back=held, figures=figures)

    # Orders and answers; the lock is held where a name begins with neither wait nor take

    def _ensure_followed(self, of: ContainerLog) -> _Pending | None:
        """Order it unless it has been; gives the new order."""
        followed = self._followed.get(of.id)
        if not of.docker or (followed is not None and followed.run is None and followed.log == of):
            return None
        followed = self._followed[of.id] = _Followed(of)
        return self._order(_follow_order(followed))

    def _order(self, order: Order, *, then: Callable[[Answer], None] | None = None) -> _Pending:
        pending = _Pending(next(self._tickets), order, then)
        self._pending[pending.ticket] = pending
        self._outbox.append(pending)
        self._awake()
        return pending

    def _awake(self) -> None:
        with suppress(BlockingIOError):  # it is awake
            os.eventfd_write(self._wake, 1)

    def _wait_answer(self, pending: _Pending, *, seconds: float, what: str) -> Answer:
        scope = deadline.current()
        end = time.monotonic() + seconds
        with scope.on_cancel(self._notify), self._changed:
            while pending.answer is None:
                scope.check(what)
                left = end - time.monotonic()
                if left <= 0 or self._stopping.is_set():
                    raise Unavailable(f"{what}: the log process does not answer")
                self._changed.wait(scope.remaining(left))
            return pending.answer

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _take_answer(self, answer: Answer) -> None:
        with self._changed:
            pending = self._pending.pop(answer.ticket, None)
            if pending is None:
                return
            pending.answer = answer
            self._changed.notify_all()
        if pending.then is not None:
            pending.then(answer)

    def _take_drained(self, container_id: str, *, run: int, answer: Answer) -> None:
        with self._changed:
            followed = self._followed.get(container_id)
            if followed is None or followed.run != run:
                return
            followed.done, shown, followed.shown = True, followed.shown, True
        if answer.error:
            log.warning("a container's last output could not be written", container=container_id, error=answer.error)
        if not shown:
            self._on_drained(container_id)

    def _give_up(self) -> float | None:
        """Let the ends be shown that were held back for long enough; gives seconds until the next."""
        now = time.monotonic()
        with self._changed:
            held = {key: one for key, one in self._followed.items() if one.run is not None and not one.shown}
            late = [key for key, one in held.items() if one.given_up_at <= now]
            for container_id in late:
                held[container_id].shown = True
        for container_id in late:
            log.warning("the end of a container is shown before its last output is written", container=container_id)
            self._on_drained(container_id)
        return min((one.given_up_at - now for one in held.values() if not one.shown), default=None)

    # The process

    def _run(self) -> None:
        pause = RESTART_LEAST
        while not self._stopping.is_set():
            began = time.monotonic()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs:
                self._live(ours, theirs)
            if self._stopping.is_set():
                return
            self._restarts += 1
            pause = RESTART_LEAST if time.monotonic() - began > STABLE_SECONDS else min(pause * 2, RESTART_MOST)
            self._stopping.wait(pause)

    def _live(self, ours: socket.socket, theirs: socket.socket) -> None:
        """See one process from its start to its end."""
        try:
            child = self._spawn(theirs)
        except OSError as error:
            log.error("the log process cannot be started", error=error)
            return
        theirs.close()
        self._repeat_orders(child)
        self._serve(ours)
        ours.close()
        self._reap(child)
        if not self._stopping.is_set():
            log.error("the log process died and is started again", pid=child.pid, code=child.returncode)

    def _spawn(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        orders = ("--orders", str(theirs.fileno()))
        package = str(Path(shim.__file__).parents[1])
        return subprocess.Popen(
            # -P: the directory the server was started in must not lend it modules.
            [sys.executable, "-P", "-m", "shim.logs.worker", *orders, *self._words],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": package},
        )

    def _repeat_orders(self, child: subprocess.Popen[bytes]) -> None:
        with self._changed:
            self._child = child
            unanswered = list(self._pending.values())
            self._outbox.clear()
            for followed in self._followed.values():
                if not followed.done:
                    self._order(_follow_order(followed))
            self._outbox.extend(unanswered)

    def _serve(self, ours: socket.socket) -> None:
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while not self._stopping.is_set():
            poll.register(ours, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            left = self._give_up()
            found = dict(poll.poll(None if left is None else left * 1000 + 1))
            if self._wake in found:
                os.eventfd_read(self._wake)
            try:
                if found.get(ours.fileno(), 0) & ~select.POLLOUT and not self._receive(ours):
                    return
                self._send(ours)
            except (BrokenPipeError, ConnectionResetError):
                return

    def _receive(self, ours: socket.socket) -> bool:
        packet = ours.recv(MAX_PACKET)
        if packet:
            self._take_answer(msgspec.json.decode(packet, type=Answer))
        return bool(packet)

    def _send(self, ours: socket.socket) -> None:
        """Send as much as the process takes; it may be busy, and nobody waits for it here."""
        while self._outbox:
            first = self._outbox[0]
            try:
                ours.send(msgspec.json.encode(Envelope(first.ticket, first.order)), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self._outbox.popleft()

    def _reap(self, child: subprocess.Popen[bytes]) -> None:
        with self._changed:
            self._child = None
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            # One that hangs in a file system cannot even be killed; its lock on each log keeps its successor from writing.
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS)


def _follow_order(followed: _Followed) -> Follow:
    of = followed.log
    return Follow(id=of.id, docker=of.docker, cri=of.cri, since=of.created_at, ended=followed.ended)
