"""Reports of a command's two processes (`join`) to the exec program. Each report is a packet."""

from __future__ import annotations

import _socket
import os
import struct

MOST_BYTES = 256
"""Maximum bytes of a report."""

TERMINAL, BORN, READY, FAILED = "terminal", "born", "ready", "failed"
"""TERMINAL carries the descriptor of the command's terminal. BORN carries the pid of the second process. READY: the
sender executes the command next. FAILED carries the errno and the name of the failed step."""
NOTHING, END = "nothing", "end"
"""NOTHING: no report is pending. END: all processes have closed the socket."""

_KINDS = {b"t": TERMINAL, b"b": BORN, b"r": READY, b"f": FAILED}
_TERMINAL, _BORN, _READY, _FAILED = _KINDS
_NUMBER = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid and gid of the sender, from the kernel."""


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets: for the receiver and for the sender of reports."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    return ours, theirs


def born(descriptor: int, pid: int) -> None:
    """Report the pid of the second process. The first process sends this, so no process inside can prevent it."""
    _send(descriptor, _BORN + _NUMBER.pack(pid))


def ready(descriptor: int) -> None:
    """Report that this process executes the command next."""
    _send(descriptor, _READY)


def failure(descriptor: int, step: bytes, number: int) -> None:
    """Report that a step has failed with the errno `number`."""
    _send(descriptor, _FAILED + _NUMBER.pack(number) + step)


def terminal(descriptor: int, terminal: int) -> None:
    """Send the descriptor of the command's terminal."""
    reports = _socket.socket(fileno=os.dup(descriptor))
    reports.sendmsg([_TERMINAL], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _NUMBER.pack(terminal))])
    reports.close()


def _send(descriptor: int, message: bytes) -> None:
    """Send a report. If the exec program has ended, exit, so that the command does not run."""
    try:
        os.write(descriptor, message)
    except OSError:
        os._exit(1)


def receive(reports: _socket.socket) -> tuple[str, int, int, str]:
    """Return kind, sender's pid, number and text of the next report. Do not wait.

    The kernel provides the sender's pid. Only a process with CAP_SYS_ADMIN can give another pid, and only a pid that it
    sees. A process that may trace the second process can send any report in its place.
    """
    room = _socket.CMSG_SPACE(_CREDENTIALS.size) + _socket.CMSG_SPACE(_NUMBER.size)
    try:
        content, ancillary, _, _ = reports.recvmsg(MOST_BYTES, room, _socket.MSG_CMSG_CLOEXEC | _socket.MSG_DONTWAIT)
    except BlockingIOError:
        return NOTHING, 0, 0, ""
    attached = {name: data for _, name, data in ancillary}
    if _socket.SCM_CREDENTIALS not in attached:
        return END, 0, 0, ""
    sender = _CREDENTIALS.unpack(attached[_socket.SCM_CREDENTIALS])[0]
    rights = attached.get(_socket.SCM_RIGHTS, b"")
    opened = [_NUMBER.unpack_from(rights, place)[0] for place in range(0, len(rights), _NUMBER.size)]
    kind, number, text = _KINDS.get(content[:1], ""), 0, ""
    if kind == TERMINAL and opened:
        number = opened.pop(0)
    elif kind in (BORN, FAILED) and len(content) > _NUMBER.size:
        number, text = _NUMBER.unpack_from(content, 1)[0], content[1 + _NUMBER.size :].decode(errors="replace")
    elif kind != READY:
        kind = ""
    for each in opened:
        os.close(each)
    return kind, sender, number, text
