"""Packets between the server and the program: tuples, each with the number of a command first."""

import marshal
import socket
from array import array
from collections.abc import Sequence
from typing import Any

MOST_BYTES = 4096
"""Of a packet. A plan is longer, so it comes as a descriptor of a file in memory."""
MOST_DESCRIPTORS = 64
"""With a packet: the plan, three streams, 8 kinds of namespaces and the control groups of version 1."""

RUN, KILL, PING = "run", "kill", "ping"
"""To the program. RUN comes with descriptors, of the plan first; the others have none."""
HELLO, STARTED, FAILED, ENDED, PONG = "hello", "started", "failed", "ended", "pong"
"""From the program: (HELLO, pid, content of /proc/self/status) at first; (STARTED, pid), with a descriptor of the
terminal where there is one; (FAILED, step, errno) for a command of which nothing has run; (ENDED, status), as
os.waitpid returns it."""


def send(connected: socket.socket, packet: tuple[Any, ...], descriptors: Sequence[int] = (), *, flags: int = 0) -> None:
    """Send a packet. OSError."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    connected.sendmsg([marshal.dumps(packet)], rights, flags)


def receive(connected: socket.socket) -> tuple[tuple[Any, ...], list[int]]:
    """Return the next packet and its descriptors; an empty packet at the end. OSError."""
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * array("i").itemsize)
    content, ancillary, _, _ = connected.recvmsg(MOST_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    if not content:
        return (), list(descriptors)
    # Both ends are one installation, and the socket is theirs alone.
    return marshal.loads(content), list(descriptors)  # noqa: S302
