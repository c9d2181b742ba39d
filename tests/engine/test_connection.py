import errno
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from shim.base.deadline import Scope
from shim.engine.bounds import Whole
from shim.engine.connection import ConnectionLost, DockerConnection, TimedOut, connect
from shim.engine.pool import Pool
from tests.waits import wait_until

UNBOUND = Scope()


@pytest.fixture
def pair() -> Iterator[tuple[DockerConnection, socket.socket]]:
    """A connection and its Engine's end."""
    ours, theirs = socket.socketpair()
    connection = DockerConnection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def request(connection: DockerConnection) -> int:
    return connection.request("GET", "/", scope=UNBOUND, headers={}).status


def test_a_connection_without_a_free_descriptor_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", full)
    with pytest.raises(ConnectionLost, match="too many open files"):
        connect(str(tmp_path / "docker.sock"), scope=UNBOUND)


def test_a_response_is_read_piece_by_piece(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")

    assert request(connection) == 200
    assert connection.read(UNBOUND) == b"ab"
    half_way = connection.reusable
    theirs.sendall(b"cd")
    assert connection.read(UNBOUND) == b"cd"
    assert connection.read(UNBOUND) == b""
    assert (half_way, connection.reusable) == (False, True)
    assert theirs.recv(100) == b"GET / HTTP/1.1\r\nHost: docker\r\n\r\n"


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore than asked for",
        b"HTTP/1.1 101 UPGRADED\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["close", "surplus", "upgraded"],
)
def test_some_connections_serve_only_one_request(pair: tuple[DockerConnection, socket.socket], wire: bytes) -> None:
    connection, theirs = pair
    theirs.sendall(wire)
    request(connection)

    assert connection.read_all(UNBOUND, into=Whole(1000)) == b""
    assert not connection.reusable


def test_a_connection_without_a_request_is_not_reusable(pair: tuple[DockerConnection, socket.socket]) -> None:
    assert not pair[0].reusable


def test_a_closed_idle_connection_is_not_alive(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, theirs = pair
    assert connection.alive()
    theirs.close()

    assert not connection.alive()


def left(pair: tuple[DockerConnection, socket.socket]) -> tuple[DockerConnection, socket.socket]:
    """A connection with an abandoned response."""
    connection, theirs = pair
    theirs.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nlast\r\n3")
    request(connection)
    assert connection.read(UNBOUND) == b"last"
    connection.abandon()
    return connection, theirs


@pytest.mark.parametrize(("rest", "reusable"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_the_bytes_drained_from_an_abandoned_response_are_bounded(
    pair: tuple[DockerConnection, socket.socket], rest: int, reusable: bool
) -> None:
    connection, theirs = pair
    theirs.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {rest}\r\n\r\n".encode())
    request(connection)
    connection.abandon()
    sending = threading.Thread(target=theirs.sendall, args=(bytes(rest),))
    sending.start()
    wait_until(connection.drain_abandoned)
    sending.join()

    assert connection.reusable is reusable


def test_an_abandoned_response_is_drained_without_waiting(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, theirs = left(pair)
    assert (connection.reusable, connection.drain_abandoned()) == (True, False)
    for part in (b"\r\nmor", b"e\r\n", b"0\r\n"):
        theirs.sendall(part)
        assert not connection.drain_abandoned()
    theirs.sendall(b"\r\n")
    assert (connection.drain_abandoned(), connection.reusable, connection.alive()) == (True, True, True)
    theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew")
    request(connection)
    assert connection.read_all(UNBOUND, into=Whole(1000)) == b"new"


@pytest.mark.parametrize("rest", [b"", b"\r\nmore", b"\r\nmore\r\n0\r\n\r\nstill more", b"x"])
def test_a_connection_that_ends_after_an_abandoned_response_is_not_reusable(
    pair: tuple[DockerConnection, socket.socket], rest: bytes
) -> None:
    connection, theirs = left(pair)
    theirs.sendall(rest)
    theirs.close()
    assert connection.drain_abandoned()
    assert not (connection.reusable and connection.alive())


def test_abort_ends_a_blocked_read_of_its_use_only(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, _ = pair
    old = connection.begin_use()
    connection.end_use()
    use = connection.begin_use()
    connection.abort(old)
    assert connection.alive()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(connection.read_raw, UNBOUND)
        connection.abort(use)
        assert reading.result(10) == b""
    assert not connection.alive()


def test_a_use_can_be_aborted_and_closed_from_many_threads(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, _ = pair
    use = connection.begin_use()
    together = threading.Barrier(8)

    def end() -> None:
        together.wait(10)
        connection.abort(use)
        connection.close()

    with ThreadPoolExecutor(8) as pool:
        for ending in [pool.submit(end) for _ in range(8)]:
            ending.result(10)


class SlowToWake(Scope):
    """A scope whose reader is delayed just before it waits, as the scheduler may do at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.about_to_wait = threading.Event()
        self.go_on = threading.Event()

    def remaining(self, limit: float | None = None) -> float | None:
        self.about_to_wait.set()
        assert self.go_on.wait(10)
        return super().remaining(limit)


def test_a_descriptor_is_not_closed_during_a_read(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, theirs = pair
    scope = SlowToWake()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(connection.read_raw, scope)
        assert scope.about_to_wait.wait(10)
        connection.close()
        strangers = [socket.socketpair() for _ in range(4)]  # the kernel assigns the lowest free numbers
        for _, far in strangers:
            far.sendall(b"the answer of another call")
        scope.go_on.set()
        assert reading.result(10) == b""
    for end in (end for both in strangers for end in both):
        end.close()
    assert theirs.recv(10) == b""  # the descriptor is closed once the reader has left


def test_a_closed_connection_is_lost(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, _ = pair
    connection.close()
    connection.close()

    with pytest.raises(ConnectionLost, match="closed"):
        connection.read_raw(UNBOUND)


@pytest.mark.parametrize("seconds", [0.02, 0.0])
def test_a_read_is_bound_by_its_scope(pair: tuple[DockerConnection, socket.socket], seconds: float) -> None:
    with pytest.raises(TimedOut):
        pair[0].read_raw(Scope(seconds=seconds))


def test_a_blocked_send_is_bound_by_its_scope(pair: tuple[DockerConnection, socket.socket]) -> None:
    with pytest.raises(TimedOut):
        pair[0].send(b"x" * 10_000_000, scope=Scope(seconds=0.02))


def test_a_reset_connection_is_lost(pair: tuple[DockerConnection, socket.socket]) -> None:
    connection, theirs = pair
    connection.send(b"never read", scope=UNBOUND)
    theirs.close()

    with pytest.raises(ConnectionLost, match="connection reset by peer"):
        connection.read_raw(UNBOUND)


def test_an_expired_scope_does_not_connect(tmp_path: Path) -> None:
    with pytest.raises(TimedOut):
        connect(str(tmp_path / "x.sock"), scope=Scope(seconds=0))


@contextmanager
def full_listener(directory: Path) -> Iterator[socket.socket]:
    """A listener whose queue of one connection is full."""
    path = str(directory / "full.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        yield listener


class Waiting(Scope):
    """Signals the second check of its expiry, which follows a failed attempt."""

    def __init__(self) -> None:
        super().__init__(seconds=60)
        self.asked = 0
        self.again = threading.Event()

    @property
    def expired(self) -> bool:
        self.asked += 1
        if self.asked > 1:
            self.again.set()
        return super().expired


def test_the_wait_for_a_full_listener_is_bound_by_the_scope(tmp_path: Path) -> None:
    with full_listener(tmp_path) as listener, pytest.raises(TimedOut):
        connect(listener.getsockname(), scope=Scope(seconds=0.02))


def test_a_full_listener_is_connected_to_once_there_is_room(tmp_path: Path) -> None:
    scope = Waiting()
    with full_listener(tmp_path) as listener, ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(connect, listener.getsockname(), scope=scope)
        assert scope.again.wait(10)
        listener.accept()[0].close()
        connection = connecting.result(10)
        theirs = listener.accept()[0]

    theirs.sendall(b"hello")
    assert connection.read_raw(UNBOUND) == b"hello"
    connection.close()
    theirs.close()


def test_a_cancelled_request_does_not_wait_for_a_full_listener(tmp_path: Path) -> None:
    scope, outer = Waiting(), Scope()
    with full_listener(tmp_path) as listener, ThreadPoolExecutor(1) as threads:
        taking = threads.submit(Pool(listener.getsockname()).take, scope=scope, outer=outer)
        assert scope.again.wait(10)
        outer.cancel()
        with pytest.raises(ConnectionLost, match="cancelled"):
            taking.result(10)
