"""The process of the Engine."""

import socket
import struct
from pathlib import Path

from shim.base.deadline import Scope
from shim.engine.connection import ConnectionLost, TimedOut, connected_socket

PROC = Path("/proc")

_ACCEPTS_CONNECTIONS = 0x10000
"""`__SO_ACCEPTCON` among the flags of /proc/net/unix."""
_UCRED = struct.Struct("3i")
_CONNECT_SECONDS = 1.0
"""The kernel connects to a daemon that listens at once, unless too many others wait to be accepted."""


def daemon_pid(path: str, *, likely: int = 0, proc: Path = PROC) -> int:
    """Return the pid of the process behind the unix socket at `path`, 0 if it is not visible in this pid namespace.

    The kernel names the process that called `listen`. With socket activation (Debian's docker.socket) that is pid 1,
    so then the daemon is the other process that holds the same listening socket. `likely` is the pid found before: if
    it is still the one, the other processes of the machine are not searched.
    """
    listener = _listener_pid(path)
    if listener != 1:
        return listener
    held = {f"socket:[{inode}]" for inode in _listening_inodes(path, proc)}
    if likely > 1 and _holds(proc / str(likely), held):
        return likely
    others = (int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal() and entry.name != "1")
    return next((pid for pid in others if _holds(proc / str(pid), held)), listener)


def _listener_pid(path: str) -> int:
    try:
        with connected_socket(path, scope=Scope(seconds=_CONNECT_SECONDS)) as probe:
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except (ConnectionLost, TimedOut):
        return 0
    pid, _uid, _gid = _UCRED.unpack(credentials)
    return int(pid)


def _listening_inodes(path: str, proc: Path) -> set[str]:
    """Return the inodes of the sockets that listen at `path`; a file replaced by a newer listener may appear twice."""
    names = {path, str(Path(path).resolve())}  # /var/run is a link to /run
    found = set()
    for line in (proc / "net/unix").read_text(errors="replace").splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if len(fields) == 8 and fields[7] in names and int(fields[3], 16) & _ACCEPTS_CONNECTIONS:
            found.add(fields[6])
    return found


def _holds(process: Path, held: set[str]) -> bool:
    try:
        return any(str(link.readlink()) in held for link in (process / "fd").iterdir())
    except OSError:  # it has ended, or its files may not be read
        return False
