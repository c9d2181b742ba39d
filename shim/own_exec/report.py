"""What the two processes of a command report to the program that has forked them, a packet for each."""

from __future__ import annotations

import _socket
import os
import struct

MOST_BYTES = 256
"""Of one report."""

TERMINAL, BORN, READY, FAILED = "terminal", "born", "ready", "failed"
"""The command's terminal, whose descriptor follows; the second process, whose pid follows; the command is executed next
by the sender; a step has failed, its errno and name follow."""
NOTHING, END = "nothing", "end"
"""Nothing to be read now; no process has the socket any more."""

_KINDS = {b"t": TERMINAL, b"b": BORN, b"r": READY, b"f": FAILED}
_TERMINAL, _BORN, _READY, _FAILED = _KINDS
_NUMBER = struct.Struct("i")
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid and gid of the sender, as the kernel knows them."""


def pair() -> tuple[_socket.socket, _socket.socket]:
    """Return two connected sockets: one that receives reports, and one for the process that sends them."""
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    ours.setsockopt(_socket.SOL_SOCKET, _socket.SO_PASSCRED, 1)
    return ours, theirs


def born(descriptor: int, pid: int) -> None:
    """Report the second process, of which nobody inside can keep the news."""
    _tell(descriptor, _BORN + _NUMBER.pack(pid))


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


def receive(reports: _socket.socket) -> tuple[str, int, int, str]:
    """Return the kind of the next report, its sender's pid, its number and its text. Does not wait.

    The kernel says whose it is: a process without CAP_SYS_ADMIN cannot name another one's pid, and none can name one
    that it does not see. Whoever may trace the second process can send anything in its place.
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
