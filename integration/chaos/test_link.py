"""The proxy to Docker fails as requested, and forwards everything otherwise."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from integration.chaos.link import Link

SECONDS = 60.0


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    """A link to an echo server."""

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            while piece := client.recv(1024):
                client.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "upstream"))
        listener.listen()
        threading.Thread(target=accept, daemon=True).start()
        with Link(tmp_path / "upstream", path=tmp_path / "link") as made:
            yield made
        listener.shutdown(socket.SHUT_RDWR)


def connected(link: Link) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(SECONDS)
    client.connect(str(link.path))
    return client


def answer(client: socket.socket, text: bytes) -> bytes:
    """Return the reply, up to the end of the connection or the length of the text."""
    got = b""
    with suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(text)
        while len(got) < len(text) and (piece := client.recv(1024)):
            got += piece
    return got


def test_all_bytes_are_forwarded(link: Link) -> None:
    with connected(link) as client:
        assert answer(client, b"hello") == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
    assert link.cuts == 0


def test_open_connections_are_cut_and_new_ones_are_not(link: Link) -> None:
    with connected(link) as client:
        assert answer(client, b"hello") == b"hello"
        link.cut()
        assert client.recv(1) == b""
    with connected(link) as client:
        assert answer(client, b"hello") == b"hello"
    assert link.cuts > 0


def test_connections_fail_while_the_link_is_down(link: Link) -> None:
    with link.down(), connected(link) as client:
        assert answer(client, b"hello") == b""
    with connected(link) as client:
        assert answer(client, b"hello") == b"hello"


def test_chunks_are_delayed(link: Link) -> None:
    with connected(link) as client, link.slow(0.2):
        began = time.monotonic()
        assert answer(client, b"hello") == b"hello"
        assert time.monotonic() - began >= 0.4  # there and back


def test_some_answers_are_truncated(link: Link) -> None:
    torn = 0
    with link.torn(Random(1)):
        for _ in range(20):
            with connected(link) as client:
                torn += answer(client, b"hello") == b"he"
    assert 0 < torn < 20
