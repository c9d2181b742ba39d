"""Relays connections from systemd's listening socket to the socket that gRPC is bound to.

gRPC's Python API binds its socket itself and cannot take over a listening socket. Two alternatives fail. If the server
moved its socket to systemd's path, clients that connect while the server is down would find a dead file instead of
waiting in systemd's queue, the purpose of activation. systemd's socket cannot replace gRPC's behind its file descriptor
either, since gRPC has already added its socket to an epoll set. So two threads copy the bytes of each connection, one
thread each way; kubelet and crictl open few connections.

Clients that connect while the server starts wait in the queue of the passed socket and are served first.
"""

import contextlib
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from shim.base.wakeup import Waker

_CHUNK = 1 << 16
_PAUSE = 1.0
"""Seconds until the next accept when no file descriptor or thread is available for a client."""

log = structlog.get_logger(__name__)


class Relay:
    """The endpoint behind systemd's socket. It never deletes or changes the file of that socket."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._closing = Waker()
        self._target = -1
        self._threads: list[threading.Thread] = []

    def prepare(self) -> Path:
        """Return the directory for temporary files, which holds gRPC's socket only until `open`."""
        return Path(tempfile.gettempdir())

    def open(self, bound: Path) -> None:
        """Keep a handle on gRPC's socket, delete its file so that no other process finds it, and accept clients."""
        self._target = os.open(bound, os.O_PATH | os.O_CLOEXEC)
        bound.unlink()
        self._begin(self._accept_all)

    @property
    def address(self) -> Path:
        """Return the path of systemd's socket, or of gRPC's if systemd's was deleted, which no restart repairs."""
        name = self._listener.getsockname()
        is_there = isinstance(name, str) and name.startswith("/") and Path(name).is_socket()
        return Path(name) if is_there else Path(f"/proc/self/fd/{self._target}")

    def close(self) -> None:
        """Stop accepting. Later clients wait in the socket's queue for the next server."""
        self._closing.wake()

    def wait_empty(self, seconds: float) -> None:
        """Wait until the threads have relayed the rest, at most `seconds` in total."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _accept_all(self) -> None:
        ready = select.poll()
        ready.register(self._listener, select.POLLIN)
        ready.register(self._closing, select.POLLIN)
        with self._listener:
            while all(descriptor != self._closing.fileno() for descriptor, _ in ready.poll()):
                self._accept()
        os.close(self._target)

    def _accept(self) -> None:
        """Accept the next client. On failure its connection is closed, and the client connects again."""
        try:
            client, _ = self._listener.accept()
            self._relay(client)
        except (OSError, RuntimeError) as error:
            # No descriptor or thread is available, or gRPC has just closed its socket.
            log.warning("failed to accept client", error=error)
            select.select([self._closing], [], [], _PAUSE)

    def _relay(self, client: socket.socket) -> None:
        """Start to relay for a client. On failure close the client and raise OSError or RuntimeError."""
        with contextlib.ExitStack() as ends:
            ends.enter_context(client)
            server = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            server.connect(f"/proc/self/fd/{self._target}")
            self._begin(_copy_both, client, server)
            ends.pop_all()

    def _begin(self, work: Callable[..., None], *args: object) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=work, args=args, name="relay", daemon=True)
        thread.start()
        self._threads.append(thread)


def _copy_both(client: socket.socket, server: socket.socket) -> None:
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client), name="relay-back", daemon=True)
        try:
            back.start()
        except RuntimeError as error:
            log.warning("failed to accept client", error=error)
            return
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    """Copy until either side ends, then end both: HTTP/2 has no half-closed connections."""
    chunk = memoryview(bytearray(_CHUNK))
    with contextlib.suppress(OSError):
        while count := source.recv_into(chunk):
            sink.sendall(chunk[:count])
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
