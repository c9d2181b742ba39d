"""The loop of the program: takes commands from the server, forks for each, reports starts and ends.

One thread, and no wait but for events. What it has forked it alone reaps, so a pid here never means another process.

The memory of this process is copied with each fork, page by page. So it imports as little as it can.
"""

from __future__ import annotations

import _socket
import gc
import marshal
import os
import select
import struct

from shim.own_exec import kernel, report, wire
from shim.own_exec.join import Join

TYPE_CHECKING = False  # typing would be copied with each fork
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from shim.own_exec.plan import Plan

NAME = b"own-exec"
_HANDED_OVER = 3
_SIGNAL_BYTES = 128
"""struct signalfd_siginfo."""
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


class _Command:
    """One command: the process that joins the container for it, and its own process."""

    def __init__(self, number: int, joining: int, reports: _socket.socket) -> None:
        self.number = number
        self.joining = joining
        """Its pid; 0 once it is reaped."""
        self.reports = reports
        self.pid = 0
        """Of the command's process; 0 until it is known, and once it is reaped."""
        self.process = -1
        """A descriptor of that process, until it is reaped."""
        self.is_killed = False
        self.has_begun = False
        self.status = 0
        """How the command's process has ended, once it is reaped."""
        self.terminal = -1
        self.failure = ("", 0)
        self.is_reported = False
        """The server knows whether it has begun."""

    def kill(self) -> None:
        """Kill its processes, also one that is not known yet, with the process group that the command leads."""
        self.is_killed = True
        for pid in (self.joining, self.pid):
            if pid:
                os.kill(pid, kernel.SIGKILL)
        if self.pid:
            try:
                os.killpg(self.pid, kernel.SIGKILL)
            except ProcessLookupError:
                pass  # it does not lead its group yet, and has no children


class Program:
    """Everything that runs in the program."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is the socket to the server."""
        kernel.set_name(NAME)
        kernel.hide_memory()
        os.set_inheritable(descriptor, False)
        self._server = _socket.socket(fileno=descriptor)
        self._commands: dict[int, _Command] = {}
        self._children: dict[int, _Command] = {}
        """The command of each process that was not reaped."""
        self._early: dict[int, int] = {}
        """How processes ended whose commands are not known yet: their reports are still to be read."""
        self._poll = select.poll()
        self._actions: dict[int, Callable[[], bool]] = {}
        self._watch(descriptor, self._take_packet)
        self._ends = kernel.watch_children()
        self._watch(self._ends, self._take_ends)

    def run(self) -> None:
        """Serve until the server closes its socket; then kill what runs, and return."""
        # Nothing is to be collected, and no page to be copied for it, in the processes that are forked.
        gc.disable()
        gc.freeze()
        with open("/proc/self/status", "rb") as status:
            self._tell(0, wire.HELLO, os.getpid(), status.read())
        while True:
            for descriptor, _ in self._poll.poll():
                action = self._actions.get(descriptor)
                if action is not None and not action():
                    return

    def _take_packet(self) -> bool:
        """Take the next packet of the server; return whether the server is there."""
        try:
            packet, descriptors = wire.receive(self._server)
        except OSError:
            packet, descriptors = (), []
        try:
            if not packet:
                for command in self._commands.values():
                    command.kill()
                return False
            number, verb = packet
            if verb == wire.RUN:
                self._start(number, descriptors)
            elif verb == wire.KILL and number in self._commands:
                self._commands[number].kill()
            elif verb == wire.PING:
                self._tell(number, wire.PONG)
        finally:
            for each in descriptors:
                os.close(each)
        return True

    def _start(self, number: int, descriptors: Sequence[int]) -> None:
        ours, theirs = report.pair()
        try:
            joining = os.fork()
            if not joining:
                _join(descriptors, theirs.fileno())
        except OSError as failure:
            ours.close()
            self._tell(number, wire.FAILED, "fork", failure.errno or 0)
            return
        finally:
            theirs.close()
        command = _Command(number, joining, ours)
        self._commands[number] = command
        self._children[joining] = command
        self._watch(ours.fileno(), lambda: self._take_report(command))

    def _take_report(self, command: _Command) -> bool:
        kind, number, text = report.receive(command.reports)
        if kind == report.READY:
            self._begin(command, number)
        elif kind == report.TERMINAL:
            command.terminal = number
        elif kind == report.FAILED:
            command.failure = (text, number)
        else:
            self._unwatch(command.reports.fileno())
            command.reports.close()
            self._report_start(command)
        return True

    def _begin(self, command: _Command, pid: int) -> None:
        command.has_begun = True
        if pid in self._early:
            command.status = self._early.pop(pid)
            return
        command.pid = pid
        command.process = os.pidfd_open(pid)
        self._children[pid] = command
        if command.is_killed:
            command.kill()

    def _report_start(self, command: _Command) -> None:
        """Report whether a command has begun: no process before it has its end of the reports any more."""
        command.is_reported = True
        if command.has_begun and not command.failure[0]:
            opened = [each for each in (command.terminal, command.process) if each >= 0]
            self._tell(command.number, wire.STARTED, command.pid, command.terminal >= 0, descriptors=opened)
        else:
            command.has_begun = False
            self._tell(command.number, wire.FAILED, *command.failure)
        if command.terminal >= 0:
            os.close(command.terminal)
        self._forget_if_over(command)

    def _take_ends(self) -> bool:
        """Reap every process that has ended."""
        os.read(self._ends, _SIGNAL_BYTES)
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._note_end(*ended)
        except ChildProcessError:
            pass  # there is none any more
        return True

    def _note_end(self, pid: int, status: int) -> None:
        command = self._children.pop(pid, None)
        if command is None:
            self._early[pid] = status
            return
        if pid == command.joining:
            command.joining = 0
        else:
            command.pid, command.status = 0, status
            os.close(command.process)
            command.process = -1
        self._forget_if_over(command)

    def _forget_if_over(self, command: _Command) -> None:
        if not command.is_reported or command.joining or command.pid:
            return
        del self._commands[command.number]
        if not self._commands:
            self._early.clear()  # those were of commands that had not begun
        if command.has_begun:
            self._tell(command.number, wire.ENDED, command.status)

    def _watch(self, descriptor: int, action: Callable[[], bool]) -> None:
        self._actions[descriptor] = action
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self._actions[descriptor]
        self._poll.unregister(descriptor)

    def _tell(self, *packet: object, descriptors: Sequence[int] = ()) -> None:
        """Send to the server, which reads all the time."""
        try:
            wire.send(self._server, packet, descriptors)
        except OSError:
            pass  # it has ended: the end of its socket is read next


class _Plan:
    """A plan as the server has packed it (`shim.own_exec.plan`)."""

    def __init__(self, content: bytes) -> None:
        self.__dict__ = marshal.loads(content)  # noqa: S302 - of the server, which is the same installation


def accepted() -> int:
    """Accept the server on the socket that systemd has handed over, sd_listen_fds(3), and return the connection."""
    listener = _socket.socket(fileno=_HANDED_OVER)
    while True:
        server = _socket.socket(fileno=listener._accept()[0])  # type: ignore[attr-defined] # socket.socket has it, which is larger
        credentials = server.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] == 0:
            listener.close()
            return server.detach()
        server.close()


def _join(descriptors: Sequence[int], reports: int) -> NoReturn:
    """Join a container, in a process that was forked for it."""
    try:
        content = os.read(descriptors[0], os.fstat(descriptors[0]).st_size)
        plan: Plan = _Plan(content)  # type: ignore[assignment] # it has the same fields
        Join(plan, descriptors[1:], reports).go()
    finally:
        os._exit(1)
