"""The bytes of one client's connection, plain or under TLS, without ever waiting."""

import array
import fcntl
import socket
import ssl
import termios
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from shim.streaming.spdy import Queued

_BUFFERS = 64
"""Of one `sendmsg`; the kernel takes 1024, but more than a socket's buffer is never sent at once."""


def end_sending(connected: socket.socket) -> None:
    """Signal the end to the peer, without waiting: of TLS by close_notify (RFC 8446, 6.1), then of the connection."""
    with suppress(OSError, ValueError):  # it has gone already; ssl.SSLError is an OSError
        if isinstance(connected, ssl.SSLSocket):
            connected.settimeout(0)
            with suppress(ssl.SSLWantReadError):  # the alert of the peer, which nothing depends on
                connected.unwrap()
    with suppress(OSError):
        # That of an SSLSocket would drop what can still decrypt.
        socket.socket.shutdown(connected, socket.SHUT_WR)


class Pipe:
    """A connected socket. Not thread-safe."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def receive(self, most: int) -> bytes | None:
        """Return what has come, empty at the end, None when nothing is there. OSError when the connection is lost."""
        try:
            return self._socket.recv(most)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    @property
    def holds_data(self) -> bool:
        """Return whether there is data that a poll does not report."""
        return False

    def send(self, buffers: Sequence[Queued]) -> int:
        """Send from the first buffers on; how many bytes went, 0 when none can now."""
        try:
            return self._socket.sendmsg(list(islice(buffers, _BUFFERS)))
        except BlockingIOError:
            return 0

    def end_sending(self) -> None:
        """Signal the end to the client."""
        end_sending(self._socket)

    def unsent(self) -> int:
        """Return the bytes that the kernel still has to deliver."""
        count = array.array("i", [0])
        fcntl.ioctl(self._socket, termios.TIOCOUTQ, count)
        return count[0]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class TlsPipe(Pipe):
    """A socket after its TLS handshake."""

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        self._tls = connected

    @property
    def holds_data(self) -> bool:
        """Return whether there is data that was decrypted with an earlier piece."""
        return self._tls.pending() > 0

    def send(self, buffers: Sequence[Queued]) -> int:
        """Send one record at a time: what TLS was given once it must be given again."""
        try:
            return self._tls.send(buffers[0])
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
