"""Packets between the server and the program: tuples, each with the number of a command first."""

from __future__ import annotations

import _socket
import marshal
import struct

TYPE_CHECKING = False  # typing would be copied with each fork
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_BYTES = 4096
"""Of a packet. A plan is longer, so it comes as a descriptor of a file in memory."""
MOST_DESCRIPTORS = 64
"""With a packet: the plan, three streams, 8 kinds of namespaces and the control groups of version 1."""

_INT_BYTES = 4

RUN, KILL, PING = "run", "kill", "ping"
"""To the program. RUN comes with descriptors, of the plan first; the others have none."""
HELLO, STARTED, FAILED, ENDED, PONG = "hello", "started", "failed", "ended", "pong"
"""From the program, first (HELLO, pid, content of /proc/self/status). Then for each command (FAILED, step, errno), when
nothing of it has run; or (STARTED, pid, has a terminal), with descriptors of the terminal, and of the process unless it
has ended, and in the end (ENDED, status), as os.waitpid returns it."""


def send(
    connected: _socket.socket, packet: tuple[Any, ...], descriptors: Sequence[int] = (), *, flags: int = 0
) -> None:
    """Send a packet; `flags` are those of sendmsg(2). OSError."""
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if descriptors else []
    connected.sendmsg([marshal.dumps(packet)], ancillary, flags | _socket.MSG_NOSIGNAL)


def receive(connected: _socket.socket) -> tuple[tuple[Any, ...], list[int]]:
    """Return the next packet and its descriptors; an empty packet at the end. OSError."""
    room = _socket.CMSG_SPACE(MOST_DESCRIPTORS * _INT_BYTES)
    content, ancillary, _, _ = connected.recvmsg(MOST_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for _, _, data in ancillary:
        descriptors += struct.unpack(f"{len(data) // _INT_BYTES}i", data)
    # Both ends are one installation, and the socket is theirs alone.
    return (marshal.loads(content) if content else ()), descriptors  # noqa: S302
