"""Packets between the server and the exec program: tuples that begin with the number of a command."""

from __future__ import annotations

import _socket
import marshal
import struct

TYPE_CHECKING = False  # typing would be copied with each fork
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_BYTES = 4096
"""Maximum bytes of a packet. A plan is longer, so it is passed as the descriptor of a file in memory."""
MOST_DESCRIPTORS = 64
"""Maximum descriptors with a packet: the plan, three streams, 8 namespaces and the control groups of version 1."""

_INT_BYTES = 4

RUN, KILL, PING = "run", "kill", "ping"
"""Packets to the program. The first descriptor of RUN is the plan's."""
HELLO, STARTED, FAILED, ENDED, PONG = "hello", "started", "failed", "ended", "pong"
"""Packets from the program, after the command's number:

- (HELLO, pid, content of /proc/self/status): the first packet.
- (FAILED, step, errno): no part of the command has run.
- (STARTED, pid, has a terminal): with the terminal's descriptor if any, and a pidfd unless the process has ended.
- (ENDED, status): the wait status of a command that has started.
"""


def send(
    connected: _socket.socket, packet: tuple[Any, ...], descriptors: Sequence[int] = (), *, flags: int = 0
) -> None:
    """Send a packet; `flags` are flags of sendmsg(2). Raise OSError."""
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else []
    connected.sendmsg([marshal.dumps(packet)], ancillary, flags | _socket.MSG_NOSIGNAL)


def receive(connected: _socket.socket) -> tuple[tuple[Any, ...], list[int]]:
    """Return the next packet and its descriptors; an empty packet at the end. Raise OSError."""
    room = _socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT_BYTES)
    content, ancillary, _, _ = connected.recvmsg(MOST_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for _, _, data in ancillary:
        descriptors += struct.unpack(f"{len(data) // _INT_BYTES}i", data)
    # Both ends are the same installation, and nobody else has the socket.
    return (marshal.loads(content) if content else ()), descriptors  # noqa: S302
