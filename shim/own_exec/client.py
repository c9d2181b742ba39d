"""The server's side of the exec program: starts the program, sends plans, and receives start and end of each command.

A program that dies or does not answer is replaced. Its commands die with it, so that no command runs without a client.
"""

import itertools
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import structlog

from shim.base import deadline
from shim.base.child_process import ChildProcess
from shim.base.heartbeat import Heartbeat
from shim.base.wakeup import Waker
from shim.domain.errors import ResourceExhausted, ShimError, Unavailable, reason_of
from shim.own_exec import wire
from shim.own_exec.plan import Plan, packed

MAX_COMMANDS = 2048
"""Maximum concurrent commands, each a process. Admission allows fewer."""
SERVICE_SOCKET = Path("/run/pydockershim-exec.sock")
"""The socket where systemd listens for the program (pydockershim-exec.socket)."""
_HELLO_SECONDS = 10.0
"""Limit for the program's start, which takes 0.1 s."""
RETRY_SECONDS = 10.0
"""Back-off after a failed start of the program, because each attempt starts Python."""
_STOP_SECONDS = 1.0
"""Limit for the program to end after its socket is closed, and again after it is killed."""

log = structlog.get_logger(__name__)


class NotBegun(Exception):
    """No part of the command has run. The text names the failed step and the reason."""


class Running:
    """A command as the program reports it. Thread-safe."""

    def __init__(self, number: int, changed: threading.Condition, kill: Callable[[int], None]) -> None:
        self.number = number
        self.pid = 0
        """The pid on the host, once the command has begun."""
        self._terminal = -1
        self.ended = Waker()
        """Becomes readable when the command has ended, or when the program has, which leaves the status unknown."""
        self.status: int | None = None
        """The status from os.waitpid, once the command has ended."""
        self._changed = changed
        self._kill = kill
        self._has_begun = False
        self._failure = ""
        self._lost = False
        self._process = -1
        """A pidfd of the process."""

    def take_terminal(self) -> int:
        """Return the descriptor of the terminal. The caller must close it."""
        terminal, self._terminal = self._terminal, -1
        return terminal

    def close(self) -> None:
        """Close the descriptors. No thread may still wait."""
        self.ended.close()
        for descriptor in (self.take_terminal(), self._process):
            if descriptor >= 0:
                os.close(descriptor)
        self._process = -1

    def wait_begun(self) -> None:
        """Wait until the command executes. Raise NotBegun if that fails, Cancelled or DeadlineExceeded."""
        deadline.wait_for(
            self._changed, lambda: self._has_begun or self._failure or self._lost, what="wait for the start of an exec"
        )
        if self._failure or not self._has_begun:
            raise NotBegun(self._failure or "the exec program has ended")

    def wait_ended(self, *, what: str, seconds: float | None = None) -> int | None:
        """Wait for the end and return the wait status; None if the command still runs after `seconds`.

        Raise ShimError if the status is unknown, Cancelled or DeadlineExceeded; their texts name `what`.
        """
        deadline.wait_for(self._changed, lambda: self.status is not None or self._lost, what=what, limit=seconds)
        if self._lost and self.status is None:
            raise ShimError(f"{what}: the exec program has ended, so the exit code is not known")
        return self.status

    @property
    def has_ended(self) -> bool:
        """Whether the command has ended, or its end will stay unknown."""
        return self.status is not None or self._lost

    def kill(self) -> None:
        """Kill the process and its process group, even if the command has not begun. Do not wait."""
        self._kill(self.number)

    # The caller of these methods holds the lock.

    def note_begun(self, pid: int, descriptors: Sequence[int], *, has_terminal: bool) -> None:
        """Record the start."""
        self._has_begun, self.pid = True, pid
        opened = list(descriptors)
        if has_terminal:
            self._terminal = opened.pop(0)
        if opened:
            [self._process] = opened

    def note_failure(self, step: str, number: int) -> None:
        """Record that the command cannot start."""
        self._failure = f"{step or 'it was killed'}: {os.strerror(number)}" if number else step or "it was killed"

    def note_end(self, status: int) -> None:
        """Record the end."""
        self.status = status
        self.ended.wake()

    def note_loss(self) -> None:
        """Record that the program has ended, and kill the command.

        The kernel kills it together with the program, but not if the command has gained privileges.
        """
        self._lost = True
        if self._process >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.ended.wake()


class _Service:
    """The program as a systemd service. A server in a hardened unit cannot start it as a child with full rights."""

    def __init__(self, path: Path) -> None:
        """Connect. Raise OSError."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.pid = 0
        """Set by the program's HELLO."""

    def kill(self) -> None:
        """Kill the program."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self, *, seconds: float) -> None:
        """Do nothing: systemd reaps the program, and starts it again for the next connection."""


class ExecProgram:
    """The exec program. It is started at the first command, and again after its death. Thread-safe."""

    def __init__(self, *, service: Path = SERVICE_SOCKET) -> None:
        """Use the program behind the socket `service` if the socket exists, or else start a child process."""
        self._service = service
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._running: dict[int, Running] = {}
        self._killed: set[int] = set()
        """Killed commands that have not ended yet, even if no caller waits."""
        self._process: ChildProcess | _Service | None = None
        self._status: bytes | None = None
        self._reader: threading.Thread | None = None
        self._wake: Waker | None = None
        self._heartbeat = Heartbeat()
        self._stopped = False
        self._retry_at = -math.inf
        """Monotonic time of the next attempt after a failed start."""

    @property
    def pid(self) -> int:
        """The pid of the program; 0 while it does not run."""
        process = self._process
        return process.pid if process else 0

    def status(self) -> bytes:
        """Return the program's /proc/self/status. Start the program if necessary. Raise Unavailable."""
        with self._changed:
            self._ensure_process()
            deadline.wait_for(
                self._changed,
                lambda: self._status is not None or self._process is None,
                what="wait for the exec program",
                limit=_HELLO_SECONDS,
            )
            if self._status is None:
                raise Unavailable("the exec program has not begun")
            return self._status

    def stop(self) -> None:
        """End the program and its commands."""
        with self._changed:
            self._stopped = True
            if self._process is not None:
                self._process.socket.shutdown(socket.SHUT_RDWR)
            reader = self._reader
        if reader is not None:
            reader.join(3 * _STOP_SECONDS)

    def run(self, plan: Plan, descriptors: Sequence[int]) -> Running:
        """Send a command to the program. The caller keeps and closes `descriptors`.

        Raise Unavailable without a program, and ResourceExhausted if MAX_COMMANDS run.
        """
        content = _file_of(packed(plan))
        try:
            with self._changed:
                process = self._ensure_process()
                if len(self._running) >= MAX_COMMANDS:
                    raise ResourceExhausted(f"exec: {MAX_COMMANDS} commands run already")
                running = Running(next(self._numbers), self._changed, self._kill)
                try:
                    # MSG_DONTWAIT, because the reader needs this lock to check whether the program is alive.
                    packet = running.number, wire.RUN
                    wire.send(process.socket, packet, [content, *descriptors], flags=socket.MSG_DONTWAIT)
                except OSError as error:
                    running.close()
                    raise Unavailable(f"exec: send to the exec program: {reason_of(error)}") from error
                self._running[running.number] = running
                if len(self._running) == 1 and self._wake is not None:
                    self._wake.wake()  # the reader must start to send pings
                return running
        finally:
            os.close(content)

    def forget(self, running: Running) -> None:
        """Forget a command. Kill it if it has not ended."""
        with self._changed:
            if running.number in self._running and not running.has_ended:
                self._kill(running.number)
            self._running.pop(running.number, None)
            running.close()

    def _kill(self, number: int) -> None:
        with self._changed:
            if number in self._running:
                self._killed.add(number)
                self._send(number, wire.KILL)

    def _send(self, number: int, verb: str) -> None:
        """Send a packet, unless the socket is full. KILL is repeated with each ping."""
        if self._process is not None:
            with suppress(OSError):  # the program may have ended, and its commands with it
                wire.send(self._process.socket, (number, verb), flags=socket.MSG_DONTWAIT)

    def _ensure_process(self) -> ChildProcess | _Service:
        if self._stopped:
            raise Unavailable("the server is stopping")
        if self._process is None:
            if time.monotonic() < self._retry_at:
                raise Unavailable("the exec program could not begin a moment ago")
            try:
                process = self._connected()
                self._begin_reading(process)
            except (OSError, RuntimeError) as error:
                self._retry_at = time.monotonic() + RETRY_SECONDS
                raise Unavailable(f"start the exec program: {error}") from error
            self._process = process
            self._status = None
            self._heartbeat = self._heartbeat.of_next()
        return self._process

    def _begin_reading(self, process: ChildProcess | _Service) -> None:
        """Start the reader thread. End the program if that fails, and raise OSError or RuntimeError."""
        with ExitStack() as undo:
            undo.callback(process.reap, seconds=_STOP_SECONDS)
            undo.callback(process.kill)
            undo.enter_context(process.socket)
            wake = undo.enter_context(Waker())
            reader = threading.Thread(target=self._read, args=(process, wake), name="own-exec", daemon=True)
            reader.start()
            undo.pop_all()
        self._wake, self._reader = wake, reader

    def _connected(self) -> ChildProcess | _Service:
        return _Service(self._service) if self._service.is_socket() else ChildProcess("shim.own_exec")

    # These methods run in the reader thread.

    def _read(self, process: ChildProcess | _Service, wake: Waker) -> None:
        """Process the packets of the program until it ends. Kill the program if it does not answer."""
        poll = select.poll()
        for source in (process.socket, wake):
            poll.register(source, select.POLLIN)
        try:
            while True:
                ready = {descriptor for descriptor, _ in poll.poll(self._milliseconds())}
                if wake.fileno() in ready:
                    wake.drain()
                if process.socket.fileno() in ready:
                    packet, descriptors = wire.receive(process.socket)
                    if not packet:
                        return
                    self._take(process, packet, descriptors)
                self._check_alive(process)
        except OSError:
            pass  # the program ended before it had read all packets
        finally:
            wake.close()
            self._lose(process)

    @property
    def _is_used(self) -> bool:
        """Whether the program must answer, because it has commands or callers wait for its start."""
        return bool(self._running or self._killed) or self._status is None

    def _milliseconds(self) -> float | None:
        """Return how long to wait for a packet; None, no limit, for an idle program, which gets no pings."""
        with self._changed:
            return max(0.0, self._heartbeat.seconds_left()) * 1000 if self._is_used else None

    def _check_alive(self, process: ChildProcess | _Service) -> None:
        with self._changed:
            if not self._is_used:
                return
            if self._heartbeat.is_lost:
                log.error("killing exec program: no answer", pid=process.pid)
                process.kill()
                with suppress(OSError):  # before HELLO the pid is unknown, so `kill` may have done nothing
                    process.socket.shutdown(socket.SHUT_RDWR)
            elif self._heartbeat.is_ping_due:
                self._heartbeat.note_ping()
                self._send(0, wire.PING)
                for number in self._killed:
                    self._send(number, wire.KILL)

    def _take(self, process: ChildProcess | _Service, packet: tuple[Any, ...], descriptors: Sequence[int]) -> None:
        number, verb, *details = packet
        with self._changed:
            self._heartbeat.note_answer()
            if verb == wire.HELLO:
                self._note_hello(process, *details)
                return
            if verb in (wire.FAILED, wire.ENDED):
                self._killed.discard(number)
            running = self._running.get(number)
            if running is None:
                for each in descriptors:
                    os.close(each)
                return
            if verb == wire.STARTED:
                pid, has_terminal = details
                running.note_begun(pid, descriptors, has_terminal=has_terminal)
            elif verb == wire.FAILED:
                running.note_failure(*details)
            elif verb == wire.ENDED:
                running.note_end(details[0])
            self._changed.notify_all()

    def _note_hello(self, process: ChildProcess | _Service, pid: int, status: bytes) -> None:
        if isinstance(process, _Service):
            process.pid = pid
        self._status = status
        self._changed.notify_all()

    def _lose(self, process: ChildProcess | _Service) -> None:
        with self._changed:
            self._process = None
            for running in self._running.values():
                running.note_loss()
            self._running.clear()
            self._killed.clear()
            if self._status is None:
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self._changed.notify_all()
            process.socket.close()
            if not self._stopped:
                log.warning("exec program ended", pid=process.pid)
        process.reap(seconds=_STOP_SECONDS)


def _file_of(content: bytes) -> int:
    """Return a descriptor of a file in memory, because a plan is too long for a packet."""
    descriptor = os.memfd_create("plan", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
