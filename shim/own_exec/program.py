"""The loop of the program: takes commands from the server, forks for each, reports starts and ends.

One thread, and no wait but for events. What it has forked it alone reaps, so a pid here never means another process.
"""

import gc
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from shim.own_exec import kernel, report, wire
from shim.own_exec.join import Join
from shim.own_exec.plan import unpacked

_HANDED_OVER = 3
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


class _Command:
    """One command: the process that joins the container for it, and its own process."""

    def __init__(self, number: int, joining: int, reports: socket.socket) -> None:
        self.number = number
        self.joining = joining
        """Its pid; 0 once it is reaped."""
        self.reports = reports
        self.pid = 0
        """Of the command's process; 0 until it is known, and once it is reaped."""
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
                os.kill(pid, signal.SIGKILL)
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class Program:
    """Everything that runs in the program."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is the socket to the server."""
        kernel.hide_memory()
        self._server = socket.socket(fileno=descriptor)
        self._server.set_inheritable(False)
        self._commands: dict[int, _Command] = {}
        self._children: dict[int, _Command] = {}
        """The command of each process that was not reaped."""
        self._early: dict[int, int] = {}
        """How processes ended whose commands are not known yet: their reports are still to be read."""
        self._poll = select.poll()
        self._actions: dict[int, Callable[[], bool]] = {}
        self._watch(descriptor, self._take_packet)

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
        with theirs:
            try:
                joining = os.fork()
            except OSError as failure:
                ours.close()
                self._tell(number, wire.FAILED, "fork", failure.errno or 0)
                return
            if not joining:
                _join(descriptors, theirs.fileno())
        command = _Command(number, joining, ours)
        self._commands[number] = command
        self._watch(ours.fileno(), partial(self._take_report, command))
        self._watch_end(joining, command)

    def _take_report(self, command: _Command) -> bool:
        found = report.receive(command.reports)
        if found is None:
            self._unwatch(command.reports.fileno())
            command.reports.close()
            self._report_start(command)
            self._reap()
        elif found.ready_pid:
            self._begin(command, found.ready_pid)
        elif found.terminal >= 0:
            command.terminal = found.terminal
        else:
            command.failure = (found.failed_step, found.failed_errno)
        return True

    def _begin(self, command: _Command, pid: int) -> None:
        command.has_begun = True
        if pid in self._early:
            command.status = self._early.pop(pid)
            return
        command.pid = pid
        self._watch_end(pid, command)
        if command.is_killed:
            command.kill()

    def _report_start(self, command: _Command) -> None:
        """Report whether a command has begun: no process before it has its end of the reports any more."""
        command.is_reported = True
        if command.has_begun and not command.failure[0]:
            terminals = [] if command.terminal < 0 else [command.terminal]
            self._tell(command.number, wire.STARTED, command.pid, descriptors=terminals)
        else:
            command.has_begun = False
            self._tell(command.number, wire.FAILED, *command.failure)
        if command.terminal >= 0:
            os.close(command.terminal)
        self._forget_if_over(command)

    def _watch_end(self, pid: int, command: _Command) -> None:
        process = os.pidfd_open(pid)
        self._children[pid] = command

        def reap() -> bool:
            self._unwatch(process)
            os.close(process)
            self._reap()
            return True

        self._watch(process, reap)

    def _reap(self) -> None:
        """Reap every process that has ended."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._note_end(*ended)
        if all(command.is_reported for command in self._commands.values()):
            self._early.clear()

    def _note_end(self, pid: int, status: int) -> None:
        command = self._children.pop(pid, None)
        if command is None:
            self._early[pid] = status
        elif pid == command.joining:
            command.joining = 0
            self._forget_if_over(command)
        else:
            command.pid, command.status = 0, status
            self._forget_if_over(command)

    def _forget_if_over(self, command: _Command) -> None:
        if not command.is_reported or command.joining or command.pid:
            return
        del self._commands[command.number]
        if command.has_begun:
            self._tell(command.number, wire.ENDED, command.status)

    def _watch(self, descriptor: int, action: Callable[[], bool]) -> None:
        self._actions[descriptor] = action
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self._actions[descriptor]
        self._poll.unregister(descriptor)

    def _tell(self, *packet: object, descriptors: Sequence[int] = ()) -> None:
        """Send to the server, which reads all the time. Once it has ended, the end of its socket is read next."""
        with suppress(OSError):
            wire.send(self._server, packet, descriptors)


def accepted() -> int:
    """Accept the server on the socket that systemd has handed over, sd_listen_fds(3), and return the connection."""
    with socket.socket(fileno=_HANDED_OVER) as listener:
        while True:
            server, _ = listener.accept()
            credentials = server.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] == 0:
                return server.detach()
            server.close()


def _join(descriptors: Sequence[int], reports: int) -> NoReturn:
    """Join a container, in a process that was forked for it."""
    try:
        with open(descriptors[0], "rb", closefd=False) as file:
            plan = unpacked(file.read())
        Join(plan, descriptors[1:], reports).go()
    finally:
        os._exit(1)
