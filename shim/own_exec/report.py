"""What the two processes of a command report to the program that has forked them, a packet for each."""

import os
import socket
import struct
from array import array
from typing import NamedTuple

MOST_BYTES = 256
"""Of one report."""
_NUMBER_BYTES = 4

_FAILED, _READY, _TERMINAL = b"f", b"r", b"t"
_CREDENTIALS = struct.Struct("iII")
"""struct ucred: pid, uid and gid of the sender, as the kernel knows them."""


class Report(NamedTuple):
    """One report."""

    ready_pid: int = 0
    """The process that executes the command next, as the host sees it."""
    terminal: int = -1
    """A descriptor of the command's terminal."""
    failed_step: str = ""
    failed_errno: int = 0


def ready(descriptor: int) -> None:
    """Report that the command is executed next."""
    _tell(descriptor, _READY)


def failure(descriptor: int, step: bytes, number: int) -> None:
    """Report that a step has failed, and its errno."""
    _tell(descriptor, _FAILED + number.to_bytes(_NUMBER_BYTES, "little") + step)


def terminal(descriptor: int, terminal: int) -> None:
    """Hand over the terminal of the command."""
    with socket.socket(fileno=os.dup(descriptor)) as reports:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [terminal]))
        reports.sendmsg([_TERMINAL], [rights])


def _tell(descriptor: int, message: bytes) -> None:
    """Nobody reads it once the server has ended: then the command is not to begin."""
    try:
        os.write(descriptor, message)
    except OSError:
        os._exit(1)


def pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets: one that receives reports, and one for the process that sends them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def receive(reports: socket.socket) -> Report | None:
    """Return the next report; None at the end, or for what no process of ours would send.

    The kernel says whose it is: no process of a container can name another one's pid.
    """
    room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_NUMBER_BYTES)
    content, ancillary, _, _ = reports.recvmsg(MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    kind, rest = content[:1], content[1:]
    attached = {name: data for _, name, data in ancillary}
    if kind == _READY:
        return Report(ready_pid=_CREDENTIALS.unpack(attached[socket.SCM_CREDENTIALS])[0])
    if kind == _FAILED:
        number = int.from_bytes(rest[:_NUMBER_BYTES], "little")
        return Report(failed_step=rest[_NUMBER_BYTES:].decode(errors="replace"), failed_errno=number)
    if kind == _TERMINAL and socket.SCM_RIGHTS in attached:
        return Report(terminal=int.from_bytes(attached[socket.SCM_RIGHTS][:_NUMBER_BYTES], "little"))
    return None
