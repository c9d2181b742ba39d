"""A process that answers like an Engine, with prepared bytes."""

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from integration.bench.http.responses import Exchange

_EVENT_SECONDS = 0.0002
"""Pause between two events, so that each is read alone as on a node."""
_END_SECONDS = 30


@contextmanager
def serving(path: Path, exchanges: Iterable[Exchange]) -> Iterator[str]:
    """Serve at `path` during the block; yields the endpoint."""
    answers = {_line(exchange.method, exchange.target): exchange for exchange in exchanges}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener, answers), daemon=True)
    server.start()
    listener.close()
    try:
        yield f"unix://{path}"
    finally:
        server.kill()
        server.join(_END_SECONDS)


def _serve(listener: socket.socket, answers: dict[str, Exchange]) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, answers), daemon=True).start()


def _answer(connection: socket.socket, answers: dict[str, Exchange]) -> None:
    with connection, connection.makefile("rb") as reader:
        while line := reader.readline():
            length = 0
            while (header := reader.readline().strip().lower()) and header:
                if header.startswith(b"content-length:"):
                    length = int(header.partition(b":")[2])
            reader.read(length)
            method, target, _ = line.decode().split(" ")
            answer = answers[_line(method, target)]
            pause = _EVENT_SECONDS if "/events" in target else 0.0
            try:
                _send(connection, answer, pause=pause)
            except OSError:  # the client has all it needs
                return
            if answer.upgrades:
                return


def _send(connection: socket.socket, answer: Exchange, *, pause: float) -> None:
    for piece in answer.arriving:
        connection.sendall(piece)
        if pause:
            time.sleep(pause)


def _line(method: str, target: str) -> str:
    return f"{method} {target.partition('?')[0]}"
