"""Errors of the peer, which end a stream or the session."""

import zlib

import pytest

from shim.streaming.spdy import (
    ConnectionTerminated,
    Event,
    GoAwayStatus,
    Limits,
    ResetStatus,
    StreamOpened,
    StreamReset,
)
from shim.streaming.spdy.headers import DICTIONARY
from tests.streaming.spdy.wire import (
    FIN,
    UNIDIRECTIONAL,
    Connection,
    Peer,
    block,
    control,
    data,
    goaway,
    joined,
    ping,
    rst_stream,
    settings,
    window_update,
    words,
)

KIB = 1024
SMALL = Limits(session_window=128 * KIB, stream_window=64 * KIB, max_answers=1000)


def opened(peer: Peer, *stream_ids: int, limits: Limits = SMALL) -> Connection:
    """Return a server with these streams open, and nothing to send."""
    connection = Connection(limits)
    connection.receive_data(b"".join(peer.syn_stream(stream_id) for stream_id in stream_ids) + ping(1))
    connection.data_to_send()
    return connection


def only(events: list[Event]) -> Event:
    (event,) = events
    return event


def assert_session_ends(connection: Connection, wire: bytes, *, last: int = 1) -> str:
    """Check that the session ended with GOAWAY PROTOCOL_ERROR and reads nothing more; return the reason."""
    event = connection.receive_data(wire)[-1]
    assert isinstance(event, ConnectionTerminated)
    assert event.status is GoAwayStatus.PROTOCOL_ERROR
    assert connection.closed
    assert connection.data_to_send().endswith(goaway(last, 1))
    assert connection.receive_data(ping(1)) == []
    assert connection.receive_eof() == []
    assert connection.data_to_send() == b""
    return event.reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(block((b"Upper", b"1")), "lower case", id="upper-case"),
        pytest.param(block((b"", b"1")), "empty", id="empty-name"),
        pytest.param(block((b"a", b"1"), (b"a", b"2")), "twice", id="twice"),
        pytest.param(words(5), "too short", id="cut"),
    ],
)
def test_invalid_headers_only_refuse_their_stream(raw: bytes, reason: str) -> None:
    peer = Peer()
    connection = opened(peer, 1)
    assert connection.receive_data(peer.syn_stream(3, raw=raw)) == []
    assert connection.data_to_send() == rst_stream(3, ResetStatus.PROTOCOL_ERROR)
    assert isinstance(only(connection.receive_data(peer.syn_stream(5, (b"a", b"1")))), StreamOpened)


def test_a_second_syn_stream_ends_the_first() -> None:
    peer = Peer()
    connection = opened(peer, 1)
    assert connection.receive_data(peer.syn_stream(1)) == [StreamReset(1, ResetStatus.PROTOCOL_ERROR, by_peer=False)]
    assert connection.data_to_send() == rst_stream(1, ResetStatus.PROTOCOL_ERROR)
    assert connection.receive_data(peer.syn_stream(1)) == []


def test_unidirectional_streams_are_refused() -> None:
    peer = Peer()
    connection = opened(peer, 1)
    assert connection.receive_data(peer.syn_stream(3, flags=UNIDIRECTIONAL)) == []
    assert connection.data_to_send() == rst_stream(3, ResetStatus.REFUSED_STREAM)


def test_streams_beyond_the_limit_are_refused_until_another_ends() -> None:
    peer = Peer()
    connection = opened(peer, 1, 3, limits=Limits(max_streams=2))
    assert connection.receive_data(peer.syn_stream(5)) == []
    assert connection.data_to_send() == rst_stream(5, ResetStatus.REFUSED_STREAM)
    connection.receive_data(rst_stream(1, 5))
    assert isinstance(only(connection.receive_data(peer.syn_stream(7))), StreamOpened)


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        pytest.param(data(9, b"x"), ResetStatus.INVALID_STREAM, id="never-opened"),
        pytest.param(data(2, b"x"), ResetStatus.INVALID_STREAM, id="never-opened-here"),
        pytest.param(data(9, flags=FIN), ResetStatus.INVALID_STREAM, id="never-opened-fin"),
    ],
)
def test_data_of_an_unknown_stream_resets_it(wire: bytes, status: ResetStatus) -> None:
    connection = opened(Peer(), 1)
    assert connection.receive_data(wire) == []
    assert connection.data_to_send() == rst_stream(int.from_bytes(wire[:4], "big"), status)


def test_data_after_the_end_of_a_stream_resets_it() -> None:
    connection = opened(Peer(), 1)
    connection.receive_data(rst_stream(1, 5))
    assert connection.receive_data(data(1, b"x")) == []
    assert connection.data_to_send() == rst_stream(1, ResetStatus.PROTOCOL_ERROR)


def test_data_after_fin_resets_the_stream() -> None:
    connection = opened(Peer(), 1)
    connection.receive_data(data(1, flags=FIN))
    assert connection.receive_data(data(1, b"x")) == [StreamReset(1, ResetStatus.STREAM_ALREADY_CLOSED, by_peer=False)]
    assert connection.data_to_send() == rst_stream(1, ResetStatus.STREAM_ALREADY_CLOSED)


def test_dropped_data_is_given_back_to_the_session() -> None:
    connection = opened(Peer(), 1)
    for _ in range(3):
        connection.receive_data(data(9, bytes(64 * KIB)))
        assert connection.data_to_send() == window_update(0, 64 * KIB) + rst_stream(9, 2)
    assert connection.wants_data


def test_a_reply_of_the_client_resets_the_stream() -> None:
    peer = Peer()
    connection = opened(peer, 1)
    assert connection.receive_data(peer.syn_reply(1)) == [StreamReset(1, ResetStatus.STREAM_IN_USE, by_peer=False)]


def test_exceeding_a_stream_window_resets_the_stream() -> None:
    connection = opened(Peer(), 1)
    connection.receive_data(settings(initial_window_size=65536))
    assert joined(connection.receive_data(data(1, bytes(64 * KIB)))) == [(1, bytes(64 * KIB))]
    assert connection.receive_data(data(1, b"x")) == [StreamReset(1, ResetStatus.FLOW_CONTROL_ERROR, by_peer=False)]
    assert connection.data_to_send() == rst_stream(1, 7) + window_update(0, 64 * KIB + 1)


def test_exceeding_the_session_window_ends_the_session() -> None:
    connection = opened(Peer(), 1, 3, 5)
    connection.receive_data(settings(initial_window_size=65536) + data(1, bytes(64 * KIB)) + data(3, bytes(64 * KIB)))
    assert "does not fit the session's window" in assert_session_ends(connection, data(5, b"x"), last=5)


def test_a_peer_without_windows_may_exceed_them() -> None:
    connection = opened(Peer(), 1)
    assert joined(connection.receive_data(data(1, bytes(300 * KIB)))) == [(1, bytes(300 * KIB))]
    assert not connection.wants_data
    connection.acknowledge(1, 300 * KIB)
    assert connection.wants_data


@pytest.mark.parametrize(
    ("delta", "status"), [(0, ResetStatus.PROTOCOL_ERROR), (0x7FFFFFFF, ResetStatus.FLOW_CONTROL_ERROR)]
)
def test_an_invalid_window_update_resets_the_stream(delta: int, status: ResetStatus) -> None:
    connection = opened(Peer(), 1)
    assert connection.receive_data(window_update(1, delta)) == [StreamReset(1, status, by_peer=False)]
    assert connection.data_to_send() == rst_stream(1, status)


def test_a_window_update_of_a_closed_stream_is_ignored() -> None:
    connection = opened(Peer(), 1)
    assert connection.receive_data(window_update(9, 0) + window_update(2, 5)) == []
    assert connection.data_to_send() == b""


def _ended_zlib() -> bytes:
    ender = zlib.compressobj(zdict=DICTIONARY)
    return ender.compress(block()) + ender.flush()


def _bomb() -> bytes:
    maker = zlib.compressobj(level=9, zdict=DICTIONARY)
    return maker.compress(bytes(10 << 20)) + maker.flush(zlib.Z_SYNC_FLUSH)


def _syn(compressed: bytes) -> bytes:
    return control(1, words(1, 0) + b"\0\0" + compressed)


@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        pytest.param(_syn(b"\xde\xad\xbe\xef"), "cannot be inflated", id="not-zlib"),
        pytest.param(_syn(_bomb()), "inflates to more than 4096", id="bomb"),
        pytest.param(_syn(_ended_zlib()), "ended", id="zlib-ended"),
        pytest.param(_syn(bytes(16 * KIB)), "SYN_STREAM of 16394 bytes", id="oversized"),
        pytest.param(Peer().syn_stream(0), "stream 0 cannot be opened", id="stream-0"),
        pytest.param(Peer().syn_stream(2), "stream 2 cannot be opened", id="parity"),
        pytest.param(Peer().syn_reply(0), "stream 0", id="reply-0"),
        pytest.param(data(0, b"x"), "stream 0", id="data-0"),
        pytest.param(window_update(0, 0), "WINDOW_UPDATE by 0", id="window-update-0"),
        pytest.param(window_update(0, 0x7FFFFFFF), "WINDOW_UPDATE by", id="session-window-overflow"),
        pytest.param(settings(initial_window_size=1 << 31), "initial window", id="window-too-large"),
        pytest.param(control(6, b"abc"), "PING cannot have 3 bytes", id="ping-short"),
        pytest.param(control(6, words(1), version=2), "version 2", id="version"),
        pytest.param(b"\xff" * 64, "version 32767", id="ones"),
    ],
)
def test_errors_that_end_the_session(wire: bytes, reason: str) -> None:
    assert reason in assert_session_ends(Connection(), wire, last=0)


def test_an_http_request_is_data_of_an_unknown_stream() -> None:
    connection = Connection()
    assert connection.receive_data(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") == []
    assert connection.data_to_send().endswith(rst_stream(int.from_bytes(b"GET ", "big"), ResetStatus.INVALID_STREAM))


def test_a_decreasing_stream_id_ends_the_session() -> None:
    peer = Peer()
    connection = opened(peer, 5)
    assert "after 5" in assert_session_ends(connection, peer.syn_stream(3), last=5)


def test_an_error_after_goaway_is_reported() -> None:
    connection = opened(Peer(), 1)
    connection.goaway()
    assert_session_ends(connection, data(0, b"x"))


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(ping(3), id="pings"),
        pytest.param(data(9), id="data-of-no-stream"),
        pytest.param(data(1, flags=FIN), id="data-after-fin"),
    ],
)
def test_a_peer_that_does_not_read_the_answers_it_provokes_is_cut_off(flood: bytes) -> None:
    connection = opened(Peer(), 1)
    event = connection.receive_data(flood * 10_000)[-1]
    assert isinstance(event, ConnectionTerminated)
    assert "does not read" in event.reason
    assert connection.queued < SMALL.max_answers + 100


def test_a_peer_that_reads_its_answers_is_not_cut_off() -> None:
    connection = opened(Peer(), 1)
    for _ in range(1000):
        connection.receive_data(ping(3) * 50)
        assert connection.data_to_send() == ping(3) * 50
    assert not connection.closed
