"""A proxy to a registry that can throttle, block or reset connections during a pull."""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_PIECE = 16 * 1024
_THROTTLED_PIECE = 128 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close does not wait, and sends RST instead of FIN."""


class Proxy:
    """Forwards TCP connections to a registry; forwards answers only as far as allowed."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.partition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._allowed: int | None = None
        self._open: set[int] = set()
        self._blocked: set[int] = set()
        self._resets = 0
        """How many connections will be reset instead of blocked."""
        self._seconds_per_byte = 0.0
        self._free_at = 0.0
        """When all forwarded bytes would have passed the throttled link."""
        threading.Thread(target=self._serve, name="proxy", daemon=True).start()

    def allow(self, size: int | None) -> None:
        """Let `size` more bytes of answers pass; None lets everything pass from now on."""
        with self._changed:
            self._allowed = None if size is None else (self._allowed or 0) + size
            self._changed.notify_all()

    def reset(self, *, after: int, times: int) -> None:
        """Let `after` more bytes of answers pass, then reset the next `times` connections with more.

        Then let all pass.
        """
        with self._changed:
            self._resets = times
            self.allow(after)

    def is_done_resetting(self) -> bool:
        """Whether all requested resets have happened."""
        with self._changed:
            return not self._resets

    def throttle(self, bytes_per_second: float) -> None:
        """Limit the rate of answers over all connections; call it before the first connection."""
        self._seconds_per_byte = 1 / bytes_per_second

    def wait_blocked(self, *, timeout: float) -> None:
        """Wait until all allowed bytes have passed and more are pending."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._blocked, timeout), "no connection is blocked"

    def wait_given_up(self) -> None:
        """Wait until the client closes the blocked connections.

        Docker notices only when more bytes arrive that it has given up, so a few pass at a time; a client that
        continues would read all of them.
        """
        with self._changed:
            blocked = set(self._blocked)
            assert blocked, "no connection is blocked"
            for _ in range(50):
                self.allow(_PIECE)
                if self._changed.wait_for(lambda: not blocked & self._open, 0.2):
                    return
        raise AssertionError("the client has not given up")

    def close(self) -> None:
        """Stop accepting connections, and unblock the open connections."""
        self._listener.close()
        self.allow(None)

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                number = next(self._numbers)
                threading.Thread(target=self._connect, args=(number, client), daemon=True).start()

    def _connect(self, number: int, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream) as server:
            self._note(self._open.add, number)
            answers = threading.Thread(target=self._pass_back, args=(number, server, client), daemon=True)
            answers.start()
            with suppress(OSError):
                while piece := client.recv(_PIECE):
                    server.sendall(piece)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            self._note(self._open.discard, number)

    def _pass_back(self, number: int, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(_THROTTLED_PIECE if self._seconds_per_byte else _PIECE):
                self._wait_turn(len(piece))
                while piece:
                    if self._is_reset_due():
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                        client.shutdown(socket.SHUT_RD)  # the peer does not notice; the reading thread closes
                        return
                    size = self._wait_allowed(number, len(piece))
                    client.sendall(piece[:size])
                    piece = piece[size:]
            client.shutdown(socket.SHUT_RDWR)

    def _is_reset_due(self) -> bool:
        with self._changed:
            if self._allowed != 0 or not self._resets:
                return False
            self._resets -= 1
            if not self._resets:
                self.allow(None)
            return True

    def _wait_allowed(self, number: int, wanted: int) -> int:
        with self._changed:
            if self._allowed == 0:
                self._note(self._blocked.add, number)
                self._changed.wait_for(lambda: self._allowed != 0)
                self._note(self._blocked.discard, number)
            if self._allowed is None:
                return wanted
            size = min(wanted, self._allowed)
            self._allowed -= size
            return size

    def _wait_turn(self, size: int) -> None:
        if self._seconds_per_byte:
            with self._changed:
                self._free_at = max(self._free_at, time.monotonic()) + size * self._seconds_per_byte
                turn = self._free_at
            time.sleep(max(0.0, turn - time.monotonic()))

    def _note(self, change: Callable[[int], None], number: int) -> None:
        with self._changed:
            change(number)
            self._changed.notify_all()
