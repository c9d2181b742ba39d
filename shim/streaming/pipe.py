"""Non-blocking I/O on the connection of a client, plain or with TLS."""

import array
import fcntl
import socket
import ssl
import termios
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from shim.streaming.spdy import Queued

_BUFFERS = 64
"""Maximum buffers of a `sendmsg`. The kernel allows 1024, but fewer fill a socket's buffer."""


def end_sending(connected: socket.socket) -> None:
    """Signal the end to the peer without waiting: with TLS by a close_notify (RFC 8446, 6.1), then by a FIN."""
    with suppress(OSError, ValueError):  # the peer is gone; ssl.SSLError is an OSError
        if isinstance(connected, ssl.SSLSocket):
            connected.settimeout(0)
            with suppress(ssl.SSLWantReadError):  # the peer's close_notify is not needed
                connected.unwrap()
    with suppress(OSError):
        # Not SSLSocket.shutdown, which would drop the TLS state, so that received bytes could not be decrypted.
        socket.socket.shutdown(connected, socket.SHUT_WR)


class Pipe:
    """A connected socket. One thread may receive while another sends."""

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def receive(self, most: int) -> bytes | None:
        """Return received bytes; b"" at EOF, None if there are none now. Raise OSError if the connection is lost."""
        try:
            return self._socket.recv(most)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None

    @property
    def holds_data(self) -> bool:
        """Return whether there are received bytes that a poll does not report."""
        return False

    def send(self, buffers: Sequence[Queued]) -> int:
        """Send the first buffers. Return the number of bytes sent, 0 if none can be sent now."""
        try:
            return self._socket.sendmsg(list(islice(buffers, _BUFFERS)))
        except BlockingIOError:
            return 0

    def end_sending(self) -> None:
        """Signal the end to the client."""
        end_sending(self._socket)

    def unsent(self) -> int:
        """Return the number of bytes that the kernel has not delivered yet."""
        count = array.array("i", [0])
        fcntl.ioctl(self._socket, termios.TIOCOUTQ, count)
        return count[0]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


class TlsPipe(Pipe):
    """A socket after its TLS handshake.

    No call waits. The calls exclude each other, because OpenSSL forbids concurrent calls on a connection, and Python
    releases its GIL in them.
    """

    def __init__(self, connected: ssl.SSLSocket) -> None:
        super().__init__(connected)
        self._tls = connected
        self._lock = threading.Lock()

    def receive(self, most: int) -> bytes | None:
        """Receive as `Pipe.receive` does."""
        with self._lock:
            return super().receive(most)

    @property
    def holds_data(self) -> bool:
        """Return whether TLS has decrypted bytes that were not read yet."""
        with self._lock:
            return self._tls.pending() > 0

    def send(self, buffers: Sequence[Queued]) -> int:
        """Send the first buffer. After a failed call, TLS requires the same buffer again."""
        try:
            with self._lock:
                return self._tls.send(buffers[0])
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def end_sending(self) -> None:
        """Signal the end to the client by close_notify and a FIN."""
        with self._lock:
            super().end_sending()
