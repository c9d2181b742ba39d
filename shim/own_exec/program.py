"""The event loop of the exec program: takes commands from the server, forks for each, and reports starts and ends.

The process has a single thread, which alone reaps children. So a known pid cannot be reused for another process.

Each fork copies the memory of this process page by page, so it imports as little as possible.
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
_PASSED_SOCKET = 3
"""The first descriptor that systemd passes, sd_listen_fds(3)."""
_SIGNAL_BYTES = 128
"""Size of struct signalfd_siginfo."""
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid, gid."""


class _Command:
    """A command: the joining process (the first process of `join`) and the process of the command itself."""

    def __init__(self, number: int, joining: int, reports: _socket.socket) -> None:
        self.number = number
        self.joiner = joining
        self.is_joining = True
        """The joining process has not been reaped."""
        self.reports = reports
        self.pid = 0
        """Pid of the command's process; 0 until it is known."""
        self.is_running = False
        """The command's process is known, and has not been reaped."""
        self.is_killed = False
        self.has_begun = False
        self.ready = 0
        """The pid that has reported READY."""
        self.status = 0
        """The wait status of the command's process, once it has been reaped."""
        self.terminal = -1
        self.failure = ("", 0)
        self.is_reported = False
        """Whether the server knows if the command has begun."""

    @property
    def is_known(self) -> bool:
        """Whether no unknown child can be the command's process."""
        return bool(self.pid) or self.is_reported

    def kill(self) -> None:
        """Kill the command's processes and its process group. An unknown process is killed as soon as it is known."""
        self.is_killed = True
        if self.is_joining:
            os.kill(self.joiner, kernel.SIGKILL)
        if self.is_running:
            os.kill(self.pid, kernel.SIGKILL)
            try:
                os.killpg(self.pid, kernel.SIGKILL)
            except ProcessLookupError:
                pass  # the process does not lead a group yet, and has no children


class Program:
    """The exec program."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is the socket to the server."""
        kernel.set_name(NAME)
        kernel.hide_memory()
        os.set_inheritable(descriptor, False)
        self._server = _socket.socket(fileno=descriptor)
        self._commands: dict[int, _Command] = {}
        self._children: dict[int, _Command] = {}
        """The command of each process that has not been reaped."""
        self._poll = select.poll()
        self._actions: dict[int, Callable[[], bool]] = {}
        self._watch(descriptor, self._take_packet)
        self._ends = kernel.watch_children()
        self._watch(self._ends, self._take_ends)

    def run(self) -> None:
        """Serve until the server closes its socket. Then kill all commands and return."""
        # A garbage collection in a forked process would copy pages.
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
        """Process the next packet of the server. Return False if the server is gone."""
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
        try:
            ours, theirs = report.pair()
        except OSError as failure:
            self._tell(number, wire.FAILED, "socketpair", failure.errno or 0)
            return
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
        self._watch(ours.fileno(), lambda: self._take_reports(command))

    def _take_reports(self, command: _Command) -> bool:
        """Process all pending reports of a command."""
        kind = ""
        while not command.is_reported and kind not in (report.NOTHING, report.END):
            kind, sender, number, text = report.receive(command.reports)
            if kind == report.FAILED:
                command.failure = (text, number)
            elif kind == report.READY:
                command.has_begun, command.ready = True, sender
            elif sender == command.joiner:
                if kind == report.BORN:
                    self._note_process(command, number)
                elif kind == report.TERMINAL:
                    command.terminal = number
            elif kind == report.TERMINAL:
                os.close(number)
        if kind == report.END and not command.pid and self._is_unknown_child(command.ready):
            self._note_process(command, command.ready)  # the joining process was killed before it could report the pid
        # A process that traces the second process may keep its end of the socket open, so END may never come.
        is_over = kind == report.END or (kind == report.NOTHING and command.pid and not self._is_alive(command))
        if is_over and not command.is_reported:
            self._report_start(command)
        return True

    def _is_alive(self, command: _Command) -> bool:
        return command.is_joining or command.is_running

    def _is_unknown_child(self, pid: int) -> bool:
        if not pid or pid in self._children:
            return False
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _note_process(self, command: _Command, pid: int) -> None:
        command.pid, command.is_running = pid, True
        self._children[pid] = command
        if command.is_killed:
            command.kill()
        self._reap()

    def _report_start(self, command: _Command) -> None:
        """Report to the server whether a command has begun. No process can send further reports about its start."""
        command.is_reported = True
        self._unwatch(command.reports.fileno())
        command.reports.close()
        if command.has_begun and command.pid and not command.failure[0]:
            opened = [command.terminal] if command.terminal >= 0 else []
            process = _open_process(command.pid) if command.is_running else -1
            if process >= 0:
                opened.append(process)
            self._tell(command.number, wire.STARTED, command.pid, command.terminal >= 0, descriptors=opened)
            if process >= 0:
                os.close(process)
        else:
            command.has_begun = False
            command.kill()
            self._tell(command.number, wire.FAILED, *command.failure)
        if command.terminal >= 0:
            os.close(command.terminal)
        self._forget_if_over(command)
        self._reap()

    def _take_ends(self) -> bool:
        os.read(self._ends, _SIGNAL_BYTES)
        self._reap()
        return True

    def _reap(self) -> None:
        """Reap every process that has ended.

        A command can add children to this process by clone(2) with CLONE_PARENT. They belong to no command. While the
        pid of a command's process is unknown, only known processes are reaped, so that the unknown process keeps its
        pid and its status.
        """
        if all(command.is_known for command in self._commands.values()):
            while self._reap_one(-1):
                pass
        else:
            for pid in list(self._children):
                self._reap_one(pid)

    def _reap_one(self, pid: int) -> bool:
        """Reap process `pid`, or any if it is -1. Return whether a process was reaped."""
        try:
            pid, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid and os.WIFSTOPPED(status):
            # The process has made this program its tracer (PTRACE_TRACEME), and would stay stopped forever.
            os.kill(pid, kernel.SIGKILL)
        elif pid:
            self._note_end(pid, status)
        return bool(pid)

    def _note_end(self, pid: int, status: int) -> None:
        command = self._children.pop(pid, None)
        if command is None:
            return
        if pid == command.joiner:
            command.is_joining = False
        else:
            command.is_running, command.status = False, status
        if command.is_reported:
            self._forget_if_over(command)
        else:
            self._take_reports(command)

    def _forget_if_over(self, command: _Command) -> None:
        if self._is_alive(command) or self._commands.pop(command.number, None) is None:
            return
        if command.has_begun:
            self._tell(command.number, wire.ENDED, command.status)

    def _watch(self, descriptor: int, action: Callable[[], bool]) -> None:
        self._actions[descriptor] = action
        self._poll.register(descriptor, select.POLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self._actions[descriptor]
        self._poll.unregister(descriptor)

    def _tell(self, *packet: object, descriptors: Sequence[int] = ()) -> None:
        """Send a packet. It blocks only briefly, because a thread of the server reads continuously."""
        try:
            wire.send(self._server, packet, descriptors)
        except OSError:
            pass  # the server has ended: `run` reads the end of its socket next


def _open_process(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # No descriptor is free. The kernel still kills the command with this program, unless it has gained privileges.
        return -1


class _Plan:
    """A plan from the server, with the fields of `shim.own_exec.plan.Plan`."""

    def __init__(self, content: bytes) -> None:
        self.__dict__ = marshal.loads(content)  # noqa: S302 - the server is the same installation


def accept_server() -> int:
    """Accept the server's connection on the socket that systemd passes, and return its descriptor.

    Connections of other users than root are closed, and so are connections that the server has closed meanwhile.
    """
    listener = _socket.socket(fileno=_PASSED_SOCKET)
    while True:
        server = _socket.socket(fileno=listener._accept()[0])  # type: ignore[attr-defined] # the public class socket.socket needs more memory
        credentials = server.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] == 0 and not _is_hung_up(server):
            listener.close()
            return server.detach()
        server.close()


def _is_hung_up(server: _socket.socket) -> bool:
    poll = select.poll()
    poll.register(server, 0)
    return bool(poll.poll(0))


def _join(descriptors: Sequence[int], reports: int) -> NoReturn:
    """Join a container, in a forked process."""
    try:
        content = os.read(descriptors[0], os.fstat(descriptors[0]).st_size)
        plan: Plan = _Plan(content)  # type: ignore[assignment] # it has the same fields
        Join(plan, descriptors[1:], reports).go()
    finally:
        os._exit(1)
