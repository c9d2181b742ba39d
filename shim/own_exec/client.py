"""The server's end of the exec program: it starts the program, sends it plans, and passes on what becomes of each.

The program is replaced when it dies or does not answer. Its commands are killed with it, so that nothing runs on
without its client.
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
from contextlib import suppress
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
"""Commands that run at a time, each a process. Admission allows fewer."""
SERVICE_SOCKET = Path("/run/pydockershim-exec.sock")
"""Where systemd listens for the program: pydockershim-exec.socket."""
_HELLO_SECONDS = 10.0
"""For the program to begin; it takes a tenth of a second."""
RETRY_SECONDS = 10.0
"""How long a program that could not begin is not tried again: Python starts for it."""
_STOP_SECONDS = 1.0
"""For the program to end once its socket was closed, and once it was killed."""

log = structlog.get_logger(__name__)


class NotBegun(Exception):
    """Nothing of the command has run. The text is the step that failed, and why."""


class Running:
    """A command as the program reports it. Thread-safe."""

    def __init__(self, number: int, changed: threading.Condition, kill: Callable[[int], None]) -> None:
        self.number = number
        self.pid = 0
        """Of its process on the host, once it has begun."""
        self._terminal = -1
        self.ended = Waker()
        """Becomes readable when the command has ended, or nothing will be known of it."""
        self.status: int | None = None
        """As os.waitpid returns it, once it has ended."""
        self._changed = changed
        self._kill = kill
        self._has_begun = False
        self._failure = ""
        self._lost = False
        self._process = -1
        """A descriptor of its process."""

    def take_terminal(self) -> int:
        """Return a descriptor of its terminal, which the caller closes."""
        terminal, self._terminal = self._terminal, -1
        return terminal

    def close(self) -> None:
        """Close the descriptors, once nobody waits any more."""
        self.ended.close()
        for descriptor in (self.take_terminal(), self._process):
            if descriptor >= 0:
                os.close(descriptor)
        self._process = -1

    def wait_begun(self) -> None:
        """Wait until its program is executed. Raise NotBegun where that fails, Cancelled or DeadlineExceeded."""
        deadline.wait_for(
            self._changed, lambda: self._has_begun or self._failure or self._lost, what="wait for the start of an exec"
        )
        if self._failure or not self._has_begun:
            raise NotBegun(self._failure or "the exec program has ended")

    def wait_ended(self, *, what: str, seconds: float | None = None) -> int | None:
        """Wait for its end and return its status; None if it runs on after `seconds`.

        Raise ShimError if nobody knows how it has ended, Cancelled or DeadlineExceeded, which name `what`.
        """
        deadline.wait_for(self._changed, lambda: self.status is not None or self._lost, what=what, limit=seconds)
        if self._lost and self.status is None:
            raise ShimError(f"{what}: the exec program has ended, so the exit code is not known")
        return self.status

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended, or nothing will be known of it."""
        return self.status is not None or self._lost

    def kill(self) -> None:
        """Kill its process with the group that it leads, whether it has begun or not. Does not wait."""
        self._kill(self.number)

    # Called with the lock held.

    def note_begun(self, pid: int, descriptors: Sequence[int], *, has_terminal: bool) -> None:
        """Take note of its start."""
        self._has_begun, self.pid = True, pid
        opened = list(descriptors)
        if has_terminal:
            self._terminal = opened.pop(0)
        if opened:
            [self._process] = opened

    def note_failure(self, step: str, number: int) -> None:
        """Take note that it does not begin."""
        self._failure = f"{step or 'it was killed'}: {os.strerror(number)}" if number else step or "it was killed"

    def note_end(self, status: int) -> None:
        """Take note of its end."""
        self.status = status
        self.ended.wake()

    def note_loss(self) -> None:
        """Take note that the program has ended. The kernel kills the command with it, unless it has gained rights."""
        self._lost = True
        if self._process >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
        self.ended.wake()


class _Service:
    """The program as systemd runs it for its socket: a server whose own unit is hardened cannot start it itself."""

    def __init__(self, path: Path) -> None:
        """Connect. OSError."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.pid = 0
        """Known once the program has said it."""

    def kill(self) -> None:
        """Kill it."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def reap(self, *, seconds: float) -> None:
        """Do nothing: it is systemd's child, which starts it again for the next connection."""


class ExecProgram:
    """The program, started with the first command and again when it has died. Thread-safe."""

    def __init__(self, *, service: Path = SERVICE_SOCKET) -> None:
        """Use the program behind the socket `service` if that exists, or start a child."""
        self._service = service
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._running: dict[int, Running] = {}
        self._killed: set[int] = set()
        """Commands that were killed and have not ended yet, whether a caller waits for them or not."""
        self._process: ChildProcess | _Service | None = None
        self._status: bytes | None = None
        self._reader: threading.Thread | None = None
        self._wake: Waker | None = None
        self._heartbeat = Heartbeat()
        self._stopped = False
        self._retry_at = -math.inf
        """When a program that could not begin is tried again, by the monotonic clock."""

    @property
    def pid(self) -> int:
        """Return the pid of the program, 0 while there is none."""
        process = self._process
        return process.pid if process else 0

    def status(self) -> bytes:
        """Return the program's /proc/self/status; start it if it does not run. Raise Unavailable."""
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
        """Have the program run a command; `descriptors` stay the caller's.

        Raise Unavailable where there is no program, ResourceExhausted when MAX_COMMANDS run.
        """
        content = _file_of(packed(plan))
        try:
            with self._changed:
                process = self._ensure_process()
                if len(self._running) >= MAX_COMMANDS:
                    raise ResourceExhausted(f"exec: {MAX_COMMANDS} commands run already")
                running = Running(next(self._numbers), self._changed, self._kill)
                try:
                    # Never waits: the reader, which looks whether the program is alive, takes the same lock.
                    packet = running.number, wire.RUN
                    wire.send(process.socket, packet, [content, *descriptors], flags=socket.MSG_DONTWAIT)
                except OSError as error:
                    running.close()
                    raise Unavailable(f"exec: send to the exec program: {reason_of(error)}") from error
                self._running[running.number] = running
                if len(self._running) == 1 and self._wake is not None:
                    self._wake.wake()  # pings are due from now on
                return running
        finally:
            os.close(content)

    def forget(self, running: Running) -> None:
        """Forget a command that has ended, or that nobody waits for any more."""
        with self._changed:
            if running.number in self._running and not running.has_ended:
                self._kill(running.number)
            self._running.pop(running.number, None)
            running.close()

    def _kill(self, number: int) -> None:
        with self._changed:
            if number in self._running:
                self._killed.add(number)
                self._tell(number, wire.KILL)

    def _tell(self, number: int, verb: str) -> None:
        """Send, unless the program takes nothing now: then it is sent again with the next ping."""
        if self._process is not None:
            with suppress(OSError):  # it has ended, and its commands with it
                wire.send(self._process.socket, (number, verb), flags=socket.MSG_DONTWAIT)

    def _ensure_process(self) -> ChildProcess | _Service:
        if self._stopped:
            raise Unavailable("the server is stopping")
        if self._process is None:
            if time.monotonic() < self._retry_at:
                raise Unavailable("the exec program could not begin a moment ago")
            try:
                process = self._connected()
                self._wake = Waker()
                self._reader = threading.Thread(
                    target=self._read, args=(process, self._wake), name="own-exec", daemon=True
                )
                self._reader.start()
            except (OSError, RuntimeError) as error:
                self._retry_at = time.monotonic() + RETRY_SECONDS
                raise Unavailable(f"start the exec program: {error}") from error
            self._process = process
            self._status = None
            self._heartbeat = self._heartbeat.of_next()
        return self._process

    def _connected(self) -> ChildProcess | _Service:
        return _Service(self._service) if self._service.is_socket() else ChildProcess("shim.own_exec")

    # The rest runs in the reader.

    def _read(self, process: ChildProcess | _Service, wake: Waker) -> None:
        """Pass the reports of the program on until it ends; kill it when it does not answer."""
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
            pass  # it ended before it had read all that was sent
        finally:
            wake.close()
            self._lose(process)

    @property
    def _is_used(self) -> bool:
        return bool(self._running or self._killed)

    def _milliseconds(self) -> float | None:
        """Return how long to wait for a packet: a program that runs nothing is not asked whether it is alive."""
        with self._changed:
            return max(0.0, self._heartbeat.seconds_left()) * 1000 if self._is_used else None

    def _check_alive(self, process: ChildProcess | _Service) -> None:
        with self._changed:
            if not self._is_used:
                return
            if self._heartbeat.is_lost:
                log.error("killing exec program: no answer", pid=process.pid)
                process.kill()
                with suppress(OSError):  # a program that has not begun yet cannot be killed
                    process.socket.shutdown(socket.SHUT_RDWR)
            elif self._heartbeat.is_ping_due:
                self._heartbeat.note_ping()
                self._tell(0, wire.PING)
                for number in self._killed:
                    self._tell(number, wire.KILL)

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
    """Return a descriptor of a file in memory: a plan is longer than a packet may be."""
    descriptor = os.memfd_create("plan", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
