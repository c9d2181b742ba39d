import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pytest

from shim.domain.errors import Cancelled
from shim.streaming import spdy
from shim.streaming.channel import Channel
from shim.streaming.pipe import Pipe
from shim.streaming.session import Session
from shim.streaming.spdy import frames
from tests.streaming.client import SECONDS, SpdyClient, session_of
from tests.streaming.spdy.client import ClientConnection, Deflater, counted, syn_stream
from tests.waits import wait_until

MIB = 1 << 20


def server() -> spdy.Connection:
    return spdy.Connection()


def accepted(session: Session) -> Channel:
    channel = session.next_channel(seconds=SECONDS)
    assert channel is not None
    channel.accept()
    return channel


def open_without_windows(far: socket.socket, *streams: int) -> None:
    """Open streams as Go's client does, which neither sends nor obeys windows."""
    deflater = Deflater()
    for stream in streams or (1,):
        far.sendall(syn_stream(stream, deflater.deflate(counted([("streamtype", "data")]))))


def data_frame(stream: int, data: bytes) -> bytes:
    return frames.data_head(stream, len(data), fin=False) + data


def fill(far: socket.socket) -> int:
    """Send until the peer stops reading; return the number of bytes sent."""
    far.settimeout(1)
    count = 0
    with suppress(TimeoutError):
        while True:
            far.sendall(data_frame(1, bytes(65536)))
            count += 65536
    return count


def test_bytes_flow_in_both_directions_which_end_separately() -> None:
    with session_of(server()) as (session, far):
        client = SpdyClient(far)
        stream = client.open(streamtype="data")
        channel = accepted(session)
        client.send(stream, b"question", fin=True)
        assert bytes(channel.read()) == b"question"
        assert bytes(channel.read()) == b""
        channel.write(b"answer")
        channel.finish()
        channel.finish()
        client.read_until_ended(stream)

        assert client.received == {stream: b"answer"}


def test_bytes_received_with_the_request_are_not_lost() -> None:
    early = ClientConnection()
    stream = early.open_stream([("streamtype", "data")])
    early.send_data(stream, b"early")
    with session_of(server(), early=early.data_to_send()) as (session, _):
        assert bytes(accepted(session).read()) == b"early"


def test_next_channel_returns_none_after_the_timeout() -> None:
    with session_of(server()) as (session, _):
        assert session.next_channel(seconds=0.05) is None


def test_finish_first_delivers_all_output_to_a_slow_client() -> None:
    data = bytes(range(256)) * 4 * 4096
    with session_of(server()) as (session, far), ThreadPoolExecutor(1) as pool:
        client = SpdyClient(far)
        stream = client.open(streamtype="data")
        channel = accepted(session)

        def serve() -> None:
            channel.write(data)
            channel.finish()
            session.finish()

        serving = pool.submit(serve)
        client.read_to_end()
        serving.result(SECONDS)

    assert bytes(client.received[stream]) == data


def test_a_client_that_does_not_read_stops_the_writer() -> None:
    with session_of(server()) as (session, far):
        SpdyClient(far).open(streamtype="data")
        channel = accepted(session)
        written = 0
        done = threading.Event()

        def write() -> None:
            nonlocal written
            with suppress(Cancelled):
                while True:
                    channel.write(bytes(65536))
                    written += 65536
            done.set()

        threading.Thread(target=write).start()
        seen = -1
        while written != seen:
            seen = written
            time.sleep(0.2)  # there is no event for "nothing happens"
        assert 0 < written < 4 * MIB
        far.close()

        assert done.wait(SECONDS)


def test_a_reader_that_does_not_read_stops_the_client() -> None:
    with session_of(server()) as (session, far):
        open_without_windows(far)
        channel = accepted(session)

        assert fill(far) < 8 * MIB
        got = 0
        while got < MIB:
            got += len(channel.read())


@pytest.mark.parametrize("size", [1, 100, 2000])
def test_small_pieces_are_merged(size: int) -> None:
    with session_of(server()) as (session, far):
        client = SpdyClient(far)
        stream = client.open(streamtype="data")
        channel = accepted(session)
        for number in range(50):
            client.send(stream, bytes([number]) * size)
        client.send(stream, fin=True)
        got = b""
        while piece := channel.read():
            got += piece

    assert got == b"".join(bytes([number]) * size for number in range(50))


def test_a_disconnect_wakes_readers_and_writers() -> None:
    with session_of(server()) as (session, far), ThreadPoolExecutor(3) as pool:
        SpdyClient(far).open(streamtype="data")
        channel = accepted(session)
        gone = threading.Event()
        with session.scope.on_cancel(gone.set):
            waits: list[Future[object]] = [pool.submit(channel.read), pool.submit(session.next_channel)]
            far.close()
            assert gone.wait(SECONDS)
        for wait in waits:
            with pytest.raises(Cancelled):
                wait.result(SECONDS)
        with pytest.raises(Cancelled):
            channel.write(b"x")
        channel.finish()
        session.finish()


def test_a_disconnect_is_noticed_while_reading_is_paused() -> None:
    with session_of(server()) as (session, far):
        open_without_windows(far)
        accepted(session)
        fill(far)
        gone = threading.Event()
        with session.scope.on_cancel(gone.set):
            far.close()
            assert gone.wait(SECONDS)


def test_garbage_ends_the_session() -> None:
    with session_of(server()) as (session, far):
        far.sendall(b"\x80\x03\x00\x01\x00\x00\x00\x00" + b"\xff" * 100)

        with pytest.raises(Cancelled):
            session.next_channel()


def test_a_reset_stream_does_not_affect_others() -> None:
    with session_of(server()) as (session, far):
        client = SpdyClient(far)
        first, second = client.open(streamtype="a"), client.open(streamtype="b")
        one, two = accepted(session), accepted(session)
        client.connection.reset(first)
        client.flush()
        assert bytes(one.read()) == b""
        one.write(b"swallowed")
        two.write(b"kept")
        two.reset()
        client.read_until_ended(second)

        assert client.received == {second: b"kept"}


def test_input_of_an_abandoned_stream_is_dropped() -> None:
    with session_of(server()) as (session, far):
        open_without_windows(far, 1, 3)
        one, two = accepted(session), accepted(session)
        one.abandon()
        for _ in range(64):
            far.sendall(data_frame(1, bytes(65536)))
        far.sendall(data_frame(3, b"heard"))

        assert bytes(two.read()) == b"heard"


def test_an_idle_session_ends_in_spite_of_pings() -> None:
    with session_of(server(), idle_timeout=0.3) as (session, far):
        client = SpdyClient(far)
        gone = threading.Event()
        with session.scope.on_cancel(gone.set):
            until = time.monotonic() + SECONDS
            while not gone.is_set() and time.monotonic() < until:
                client.connection.ping()
                try:
                    client.flush()
                except OSError:
                    break
                gone.wait(0.05)
        assert gone.wait(SECONDS)


def test_watchers_are_called_at_once() -> None:
    with session_of(server()) as (session, _):
        called = threading.Event()
        session.watch(called.set)

        assert called.wait(SECONDS)


def test_input_of_the_client_does_not_call_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.streaming.session.TICK", 1000.0)
    with session_of(server()) as (session, far):
        calls: list[int] = []
        called = threading.Event()

        def check() -> None:
            calls.append(1)
            called.set()

        session.watch(check)
        assert called.wait(SECONDS)
        client = SpdyClient(far)
        for _ in range(10):
            client.ping()

        assert len(calls) == 1


def test_watchers_are_called_repeatedly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shim.streaming.session.TICK", 0.01)
    with session_of(server()) as (session, _):
        calls: list[int] = []
        session.watch(lambda: calls.append(1))

        wait_until(lambda: len(calls) > 2)


def test_a_session_ended_before_it_runs_stays_ended() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        session = Session(Pipe(ours), server(), idle_timeout=0)
        session.end("the server stops")
        loop = threading.Thread(target=session.run)
        loop.start()
        loop.join(SECONDS)

        assert not loop.is_alive()
        assert theirs.recv(1) == b""


def test_streams_reset_before_they_were_returned_are_forgotten() -> None:
    with session_of(server()) as (session, far):
        client = SpdyClient(far)
        for _ in range(3):
            client.connection.reset(client.open(streamtype="gone"))
        client.open(streamtype="kept")
        client.ping()
        found = session.next_channel(seconds=SECONDS)

        assert found is not None
        assert found.header("streamtype") == "kept"
        assert session.next_channel(seconds=0) is None


def test_unread_bytes_of_a_reset_stream_are_dropped() -> None:
    with session_of(server()) as (session, far):
        client = SpdyClient(far)
        stream = client.open(streamtype="data")
        channel = accepted(session)
        client.send(stream, b"unread")
        client.connection.reset(stream)
        client.flush()
        client.ping()

        assert bytes(channel.read()) == b""
        assert channel.was_reset
