"""A proxy to the Engine that can cut, delay or truncate connections. It does not interpret the bytes."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Self

_PIECE = 64 * 1024
_TEAR_CHANCE = 0.2


class Link:
    """Forwards connections at `path` to an Engine. Thread-safe."""

    def __init__(self, upstream: Path, *, path: Path) -> None:
        self.path = path
        self.cuts = 0
        """How many connections were cut."""
        self._upstream = upstream
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._down = False
        self._delay = 0.0
        self._tears: Random | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(512)
        self._thread = threading.Thread(target=self._serve, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which a close does not
        self._thread.join()
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all open connections."""
        with self._lock:
            ends = list(self._open)
            self.cuts += len(ends)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Cut all connections, new connections at once, while the block runs."""
        with self._lock:
            self._down = True
        self.cut()
        try:
            yield
        finally:
            with self._lock:
                self._down = False

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Delay each chunk by `seconds` while the block runs."""
        with self._lock:
            self._delay = seconds
        try:
            yield
        finally:
            with self._lock:
                self._delay = 0.0

    @contextmanager
    def torn(self, random: Random) -> Iterator[None]:
        """While the block runs, forward only the first half of some chunks of answers, then cut the connection."""
        with self._lock:
            self._tears = random
        try:
            yield
        finally:
            with self._lock:
                self._tears = None

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(client,), name="linked", daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, self._listed(client, server):
            try:
                if self._down:
                    return
                server.connect(str(self._upstream))
            except OSError:
                return  # the Engine is down: the client sees end of file
            back = threading.Thread(target=self._pass, args=(server, client), kwargs={"tears": True}, daemon=True)
            back.start()
            self._pass(client, server, tears=False)
            back.join()

    @contextmanager
    def _listed(self, *ends: socket.socket) -> Iterator[None]:
        with self._lock:
            self._open.update(ends)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(ends)

    def _pass(self, source: socket.socket, target: socket.socket, *, tears: bool) -> None:
        """Forward until the source ends; the other direction stays open."""
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                time.sleep(self._delay)
                if tears and self._is_torn():
                    target.sendall(piece[: len(piece) // 2])
                    for end in (source, target):
                        end.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _is_torn(self) -> bool:
        with self._lock:
            torn = self._tears is not None and self._tears.random() < _TEAR_CHANCE
            self.cuts += torn
            return torn
