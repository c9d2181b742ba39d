"""What the two processes of a command report to the program that has forked them, a packet for each."""

from __future__ import annotations

import _socket
import os
import struct

MOST_BYTES = 256
"""Of one report."""

READY, TERMINAL, FAILED = "ready", "terminal", "failed"
"""The command is executed next, by the process whose pid follows; its terminal, whose descriptor follows; a step has
failed, its errno and name follow."""

_KINDS = {b"r": READY, b"t": TERMINAL, b"f": FAILED}
_READY, _TERMINAL, _FAILED = _KINDS
_NUMBER = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid and gid of the sender, as the kernel knows them."""


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets: one that receives reports, and one for the process that sends them."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    return ours, theirs


def ready(descriptor: int) -> None:
    """Report that the command is executed next, by this process."""
    _tell(descriptor, _READY)


def failure(descriptor: int, step: bytes, number: int) -> None:
    """Report that a step has failed, and its errno."""
    _tell(descriptor, _FAILED + _NUMBER.pack(number) + step)


def terminal(descriptor: int, terminal: int) -> None:
    """Hand over the terminal of the command."""
    reports = _socket.socket(fileno=os.dup(descriptor))
    reports.sendmsg([_TERMINAL], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _NUMBER.pack(terminal))])
    reports.close()


def _tell(descriptor: int, message: bytes) -> None:
    """Nobody reads it once the server has ended: then the command is not to begin."""
    try:
        os.write(descriptor, message)
    except OSError:
        os._exit(1)


def receive(reports: _socket.socket) -> tuple[str, int, str]:
    """Return the kind of the next report, its number and its text; an empty kind at the end.

    The kernel says whose it is: no process of a container can name another one's pid.
    """
    room = _socket.CMSG_SPACE(_CREDENTIALS.size) + _socket.CMSG_SPACE(_NUMBER.size)
    content, ancillary, _, _ = reports.recvmsg(MOST_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
    kind = _KINDS.get(content[:1], "")
    attached = {name: data for _, name, data in ancillary}
    if kind == READY:
        return kind, _CREDENTIALS.unpack(attached[_socket.SCM_CREDENTIALS])[0], ""
    if kind == TERMINAL:
        return kind, _NUMBER.unpack(attached[_socket.SCM_RIGHTS][: _NUMBER.size])[0], ""
    if kind == FAILED:
        end = 1 + _NUMBER.size
        return kind, _NUMBER.unpack(content[1:end])[0], content[end:].decode(errors="replace")
    return "", 0, ""
