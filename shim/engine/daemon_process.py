"""Finds the process of the Engine."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from shim.base.deadline import Scope
from shim.engine.connection import ConnectionLost, TimedOut, connected_socket

PROC = Path("/proc")

# From linux/netlink.h, linux/sock_diag.h and linux/unix_diag.h.
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_LISTENING = 1 << 10
_SHOW_FILE = 2
_FILE = 1
_HEADER = struct.Struct("=IHHII")
"""Length, type, flags, sequence, port."""
_REQUEST = struct.Struct("=BxxxIIIII")
"""Family, states, inode, attributes to return, cookie."""
_SOCKET = struct.Struct("=4xI8x")
_ATTRIBUTE = struct.Struct("=HH")
_PLACE = struct.Struct("=II")
_NUMBER = 0xFFFFFFFF
"""The mask of the inodes in an answer."""
_MINOR_BITS = 20
"""Bits of the minor number in the kernel's device numbers."""
_DATAGRAM = 1 << 16

_UCRED = struct.Struct("3i")
_CONNECT_SECONDS = 1.0
"""The kernel connects to a listening daemon at once, unless its accept queue is full."""


def daemon_pid(path: str, *, likely: int = 0, proc: Path = PROC) -> int:
    """Return the pid of the process behind the unix socket at `path`, 0 if it is not visible in this pid namespace.

    The kernel names the process that called `listen`. With socket activation (Debian's docker.socket) this is pid 1,
    and the daemon is the other process that holds the listening socket. `likely` is the last known pid: if it is still
    right, no other process is searched.
    """
    listener = _listener_pid(path)
    if listener != 1:
        return listener
    held = Listeners().at(path)
    if likely > 1 and holds(proc / str(likely), held):
        return likely
    others = (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal() and entry.name != "1")
    return next((pid for pid in others if holds(proc / str(pid), held)), listener)


def _listener_pid(path: str) -> int:
    try:
        with connected_socket(path, scope=Scope(seconds=_CONNECT_SECONDS)) as probe:
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except (ConnectionLost, TimedOut):
        return 0
    pid, _uid, _gid = _UCRED.unpack(credentials)
    return int(pid)


class Listeners:
    r"""The listening unix sockets of this network namespace, at one moment; none if the kernel does not answer.

    A socket's file is identified by device and inode. Names would not do: any user can bind a socket to the same path
    in another mount namespace, and an abstract name with `\n` can add any line to /proc/net/unix.
    """

    def __init__(self) -> None:
        self._links: dict[tuple[int, int] | None, set[str]] = {}
        with suppress(OSError):
            for inode, place in map(_listener, _dump()):
                self._links.setdefault(place, set()).add(f"socket:[{inode}]")

    def at(self, path: str) -> set[str]:
        """Return the sockets that listen on the file at `path`, as links below /proc/<pid>/fd name them."""
        try:
            file = Path(path).stat()
        except OSError:
            return set()
        place = (file.st_ino & _NUMBER, os.major(file.st_dev) << _MINOR_BITS | os.minor(file.st_dev))
        return self._links.get(place, set())


def _dump() -> Iterator[bytes]:
    """Yield the kernel's messages about all listening unix sockets of this network namespace (sock_diag(7))."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.connect((0, 0))  # receive only from the kernel
        request = _REQUEST.pack(socket.AF_UNIX, _LISTENING, 0, _SHOW_FILE, _NUMBER, _NUMBER)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + request)
        while True:
            answer = kernel.recv(_DATAGRAM)
            while answer:
                size, kind, *_ = _HEADER.unpack_from(answer)
                if kind != _BY_FAMILY:  # the end of the dump, or an error from a kernel without unix_diag
                    return
                yield answer[_HEADER.size : size]
                answer = answer[_aligned(size) :]


def _listener(message: bytes) -> tuple[int, tuple[int, int] | None]:
    """Return the inode of a socket, and the inode and device of its file (None for an abstract name)."""
    (inode,) = _SOCKET.unpack_from(message)
    rest = message[_SOCKET.size :]
    while rest:
        size, kind = _ATTRIBUTE.unpack_from(rest)
        if kind == _FILE:
            file_inode, device = _PLACE.unpack_from(rest, _ATTRIBUTE.size)
            return inode, (file_inode, device)
        rest = rest[_aligned(size) :]
    return inode, None


def _aligned(size: int) -> int:
    return size + 3 & ~3


def holds(process: Path, held: set[str]) -> bool:
    """Return whether a process, given as a directory in /proc, has a file open whose `fd` link is in `held`."""
    return not held.isdisjoint(open_files(process))


def open_files(process: Path) -> Iterator[str]:
    """Yield the `fd` links of a process; nothing more once it has exited, or if its files may not be read."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            yield str(link.readlink())
