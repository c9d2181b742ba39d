"""A way to a registry that can be made narrow, be blocked, or be reset, while a pull is under way."""

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
"""For SO_LINGER: nothing is waited for, and the peer gets RST instead of FIN."""


class Proxy:
    """Passes TCP connections on to a registry, and what comes back only as far as it is allowed."""

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
        """How many connections are going to be reset where others would be blocked."""
        self._seconds_per_byte = 0.0
        self._free_at = 0.0
        """When all that has passed back would have gone through the narrow link."""
        threading.Thread(target=self._serve, name="proxy", daemon=True).start()

    def allow(self, size: int | None) -> None:
        """Let `size` more bytes come back from the registry; None lets all pass from now on."""
        with self._changed:
            self._allowed = None if size is None else (self._allowed or 0) + size
            self._changed.notify_all()

    def reset(self, *, after: int, times: int) -> None:
        """Let `after` more bytes come back and reset `times` connections on which more would; then all pass."""
        with self._changed:
            self._resets = times
            self.allow(after)

    def is_done_resetting(self) -> bool:
        """Whether all connections that were to be reset have been."""
        with self._changed:
            return not self._resets

    def throttle(self, bytes_per_second: float) -> None:
        """Let no more than this come back in a second, over all connections; before the first one is made."""
        self._seconds_per_byte = 1 / bytes_per_second

    def wait_blocked(self, *, timeout: float) -> None:
        """Wait until all that was allowed has passed and more would come."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._blocked, timeout), "nothing was held back"

    def wait_given_up(self) -> None:
        """Wait until the connections that were blocked are closed by the client.

        Docker notices only when more arrives that it has given up, so a little passes at a time; a client that goes
        on would take all of it.
        """
        with self._changed:
            blocked = set(self._blocked)
            assert blocked, "nothing was held back"
            for _ in range(50):
                self.allow(_PIECE)
                if self._changed.wait_for(lambda: not blocked & self._open, 0.2):
                    return
        raise AssertionError("the client goes on")

    def close(self) -> None:
        """Accept no connection, and let those that wait go."""
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
                        client.shutdown(socket.SHUT_RD)  # the peer does not notice; the thread that reads closes
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
