"""Upgraded connections, over scripted bytes."""

import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, ShimError, Unavailable
from shim.engine.client import DockerEngine
from shim.engine.hijack import BATCH_BYTES, BATCH_SECONDS, MAX_READ_BYTES, MIN_READ_BYTES, ReadBatching, hijack
from shim.engine.session import DockerSession
from tests.engine.contract import WatchedScope
from tests.fakes.http_unix import CLOSE, HANG, ScriptedServer, response

START = "POST /v1.51/exec/x/start"
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"


def frame(number: int, data: bytes) -> bytes:
    return struct.pack(">BxxxI", number, len(data)) + data


def test_an_exec_requests_an_upgrade_without_a_terminal(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED, CLOSE)
    with adapter.start_exec("x") as stream:
        assert list(stream.frames()) == []
    asked = server.requests[-1]

    assert (asked.headers["connection"], asked.headers["upgrade"]) == ("Upgrade", "tcp")
    assert json.loads(asked.body) == {"Detach": False, "Tty": False}


@pytest.mark.parametrize("head", [UPGRADED, PLAIN], ids=["101", "200"])
def test_output_that_arrives_with_the_head_is_kept(adapter: DockerEngine, server: ScriptedServer, head: bytes) -> None:
    server.on(START, head + frame(1, b"early") + frame(2, b"er")[:-1], b"r", frame(1, b"late"), CLOSE)
    with adapter.start_exec("x") as stream:
        frames = list(stream.frames())

    assert b"".join(data for number, data in frames if number == 1) == b"earlylate"
    assert b"".join(data for number, data in frames if number == 2) == b"er"[:1] + b"r"


def test_a_stream_that_breaks_inside_a_frame_is_unavailable(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED + frame(1, b"whole") + frame(1, b"half")[:-2], CLOSE)
    with adapter.start_exec("x") as stream:
        frames = stream.frames()
        assert next(frames) == (1, b"wholeha")
        with pytest.raises(Unavailable, match=r"exec x: .*inside a frame"):
            next(frames)


def test_bytes_that_are_no_frames_are_refused(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED + b"OCI runtime exec failed\r\n", CLOSE)
    with adapter.start_exec("x") as stream, pytest.raises(Unavailable, match="not a frame header"):
        list(stream.frames())


def test_an_error_of_the_daemon_in_the_stream_is_raised(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED + frame(3, b"lost the process\n"), CLOSE)
    with adapter.start_exec("x") as stream, pytest.raises(ShimError, match="exec x: lost the process"):
        list(stream.frames())


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (409, "Container c is paused"),
        (409, "Container c is not running"),
        (500, "Container c is not running: Exited (7) Less than a second ago"),  # Engine 20.10
    ],
)
def test_a_refused_start_is_reported(adapter: DockerEngine, server: ScriptedServer, status: int, message: str) -> None:
    server.on(START, response(status, {"message": message}))

    with pytest.raises(FailedPrecondition, match=f"exec x: {re.escape(message)}"), adapter.start_exec("x"):
        pytest.fail("it was started")


def test_close_ends_a_blocked_read_from_another_thread(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED + frame(1, b"up"), HANG)
    up = threading.Event()

    with adapter.start_exec("x") as stream, ThreadPoolExecutor(1) as pool:

        def read() -> list[bytes]:
            seen = []
            for _, data in stream.frames():
                seen.append(data)
                up.set()
            return seen

        reading = pool.submit(read)
        assert up.wait(10)
        stream.close()
        assert reading.result(10) == [b"up"]
        stream.close()
    server.wait_hung_up()


def test_leaving_the_block_closes_the_connection(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED, HANG)
    with adapter.start_exec("x"):
        pass

    server.wait_hung_up()


def test_a_deadline_ends_the_read_but_not_the_stream(adapter: DockerEngine, server: ScriptedServer) -> None:
    go_on = threading.Event()
    server.on(START, UPGRADED + frame(1, b"abc")[:-1], go_on, b"c" + frame(2, b"d"), CLOSE)
    with adapter.start_exec("x") as stream:
        frames = stream.frames()
        assert next(frames) == (1, b"ab")
        with deadline.bound(0.02), pytest.raises(DeadlineExceeded, match="exec x"):
            next(frames)
        go_on.set()
        assert list(stream.frames()) == [(1, b"c"), (2, b"d")]


def test_a_client_that_leaves_ends_the_read(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED, HANG)
    scope = Scope()
    with deadline.entered(scope), adapter.start_exec("x") as stream, ThreadPoolExecutor(1) as pool:
        pool.submit(scope.cancel)
        with pytest.raises(Cancelled, match="exec x"):
            list(stream.frames())
    server.wait_hung_up()


def test_a_client_that_leaves_ends_a_read_with_an_inner_deadline(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(START, UPGRADED, HANG)
    inner = WatchedScope()
    with adapter.start_exec("x") as stream, deadline.entered(inner), ThreadPoolExecutor(1) as pool:
        pool.submit(inner.cancel_once_waited_for)
        with pytest.raises(Cancelled, match="exec x"):
            list(stream.frames())


def test_output_continues_after_stdin_was_closed(session: DockerSession, server: ScriptedServer) -> None:
    def echo(connection: socket.socket) -> None:
        received = b""
        while piece := connection.recv(1024):
            received += piece
        connection.sendall(received.upper())

    server.on("POST /v1.51/containers/c/attach", UPGRADED, echo, CLOSE)
    with hijack(session, "/containers/c/attach", what="attach to c", params={"stream": 1}, timeout=10) as stream:
        stream.write(b"in")
        stream.write(b"put")
        stream.close_stdin()
        assert stream.read() == b"INPUT"
        assert stream.read() == b""
    assert server.requests[-1].target.endswith("attach?stream=1")


def test_writing_to_an_ended_stream_is_unavailable(session: DockerSession, server: ScriptedServer) -> None:
    server.on("POST /v1.51/containers/c/attach", UPGRADED, CLOSE)
    with hijack(session, "/containers/c/attach", what="attach to c", timeout=10) as stream:
        assert stream.read() == b""
        with pytest.raises(Unavailable, match="attach to c: Docker cannot be reached: broken pipe"):
            stream.write(b"x")
    with pytest.raises(Unavailable, match="attach to c"):
        stream.close_stdin()


# Pauses between small pieces


class Clock:
    """A clock that advances while a caller waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rests = 0
        self.asked: list[int] = []

    def __call__(self) -> float:
        return self.now

    def rest(self, seconds: float) -> None:
        self.now += seconds
        self.rests += 1

    def arriving(self, size: int, *, after: float) -> Callable[[int], bytes]:
        def read(most: int) -> bytes:
            self.now += after
            self.asked.append(most)
            return bytes(min(size, most))

        return read


@pytest.mark.parametrize(
    ("size", "after", "rests"),
    [(4096, 0.0001, 9), (4096, 0.01, 0), (1 << 20, 0.0001, 0)],
    ids=["flood of small pieces", "now and then", "full reads"],
)
def test_reads_pause_while_small_pieces_keep_coming(size: int, after: float, rests: int) -> None:
    clock = Clock()
    gathering = ReadBatching(clock=clock, sleep=clock.rest)
    for _ in range(10):
        gathering.read(clock.arriving(size, after=after))

    assert clock.rests == rests


def test_the_first_two_pieces_after_silence_are_read_at_once() -> None:
    clock = Clock()
    gathering = ReadBatching(clock=clock, sleep=clock.rest)
    for after in (0.0001, 1.0, 1.0):  # the pause before the second overlaps with waiting for it
        gathering.read(clock.arriving(80, after=after))

    assert clock.rests == 1


@pytest.mark.parametrize(
    ("pace", "held", "least"),
    [(20e6, 1 << 20, 0.9 * BATCH_SECONDS * 20e6), (160e6, 176 << 10, 96 << 10), (2e9, 176 << 10, 96 << 10)],
    ids=["slow", "as fast as Docker", "faster than the socket holds"],
)
def test_a_pause_does_not_let_the_socket_fill(pace: float, held: int, least: float) -> None:
    clock = Clock()
    gathering = ReadBatching(clock=clock, sleep=clock.rest)
    taken, sizes = 0.0, list[int]()

    def read(most: int) -> bytes:
        nonlocal taken
        clock.now += 0.00002
        size = min(most, held, int(clock.now * pace - taken))
        taken = max(taken + size, clock.now * pace - held)
        return bytes(size)

    for _ in range(200):
        sizes.append(len(gathering.read(read)))
    settled = sizes[100:]

    assert least <= min(settled)
    assert max(settled) < min(held, 1.4 * BATCH_BYTES)


def test_large_reads_follow_large_pieces() -> None:
    clock = Clock()
    gathering = ReadBatching(clock=clock, sleep=clock.rest)
    sizes = (80, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 80)
    for size in sizes:
        gathering.read(clock.arriving(size, after=0.0001))
    for _ in range(2):
        gathering.read(clock.arriving(80, after=1.0))

    least, most = MIN_READ_BYTES, MAX_READ_BYTES
    assert clock.asked == [least, least, 2 * least, 4 * least, 8 * least, most, most, most, least]
