"""Tests with transcripts written by hand: the bytes sent for the bytes received."""

import zlib

import pytest

from shim.streaming.spdy import (
    ConnectionTerminated,
    DataReceived,
    GoAwayStatus,
    Limits,
    NotAllowed,
    ResetStatus,
    StreamHalfClosed,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from shim.streaming.spdy.headers import DICTIONARY
from tests.streaming.spdy.wire import (
    FIN,
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
GREETING = bytes.fromhex(
    "80030004 00000014 00000002 00000004 000003e8 00000007 00040000"  # 1000 streams, windows of 256 KiB
    "80030009 00000008 00000000 000f0000"  # 960 KiB more for the session
)
STDIN = (b"streamtype", b"stdin")


def server(peer: Peer, *stream_ids: int, limits: Limits | None = None) -> Connection:
    """Return a connection with these streams open and accepted, and nothing to send."""
    connection = Connection(limits)
    for stream_id in stream_ids:
        connection.receive_data(peer.syn_stream(stream_id, STDIN))
        connection.reply(stream_id)
    connection.data_to_send()
    return connection


def server_with_windows(*stream_ids: int, peer: Peer | None = None) -> Connection:
    """The same for a peer that has shown that it has windows."""
    connection = server(peer or Peer(), *stream_ids)
    connection.receive_data(settings(initial_window_size=64 * KIB))
    return connection


def reads(connection: Connection) -> bool:
    """Return `wants_data`. As a property, mypy would narrow it to a constant."""
    return connection.wants_data


def is_closed(connection: Connection) -> bool:
    """Return `closed`; see `reads`."""
    return connection.closed


def sent_headers(connection: Connection, *, kind: int) -> tuple[int, bytes]:
    """Return the stream and the inflated block of the queued frame, the first with headers."""
    sent = connection.data_to_send()
    assert sent[:4] == words(0x80030000 | kind)
    assert sent[4:8] == words(len(sent) - 8)
    return int.from_bytes(sent[8:12], "big"), zlib.decompressobj(zdict=DICTIONARY).decompress(sent[12:])


def test_the_server_sends_nothing_before_the_client() -> None:
    connection = Connection()
    assert connection.receive_data(ping(1)[:11]) == []
    assert connection.data_to_send() == b""
    assert connection.receive_data(ping(1)[11:]) == []
    assert connection.data_to_send() == GREETING + ping(1)


def test_the_life_of_a_stream() -> None:
    peer, connection = Peer(), Connection()
    assert connection.receive_data(peer.syn_stream(1, STDIN, priority=2)) == [
        StreamOpened(1, (("streamtype", "stdin"),))
    ]
    connection.data_to_send()
    connection.reply(1)
    assert sent_headers(connection, kind=2) == (1, block())
    assert joined(connection.receive_data(data(1, b"ab") + data(1, b"c", flags=FIN))) == [
        (1, b"abc"),
        StreamHalfClosed(1),
    ]
    connection.acknowledge(1, 3)
    connection.send_data(1, b"hello")
    connection.send_data(1, b"", fin=True)
    assert connection.data_to_send() == data(1, b"hello") + data(1, flags=FIN)
    with pytest.raises(NotAllowed, match="closed"):
        connection.send_window(1)


@pytest.mark.parametrize("size", [1, 2, 5, 8, 13, 64])
def test_the_events_do_not_depend_on_how_the_bytes_are_split(size: int) -> None:
    peer = Peer()
    stream = (
        peer.syn_stream(1, STDIN)
        + data(1, b"x" * 100)
        + ping(1)
        + peer.syn_stream(3, STDIN, flags=FIN)
        + data(9, b"unknown")
        + data(1, b"y", flags=FIN)
        + data(3, b"finished")
        + rst_stream(1, 5)
        + goaway(0, 0)
    )
    whole, split = Connection(), Connection()
    events = [event for at in range(0, len(stream), size) for event in split.receive_data(stream[at : at + size])]
    assert joined(events) == joined(whole.receive_data(stream))
    assert split.data_to_send() == whole.data_to_send()


def test_data_cannot_be_sent_before_the_reply() -> None:
    connection = Connection()
    connection.receive_data(Peer().syn_stream(1, STDIN))
    for attempt in (
        lambda: connection.send_window(1),
        lambda: connection.send_data(1, b"x"),
        lambda: connection.send_data(1, b"", fin=True),
    ):
        with pytest.raises(NotAllowed, match="waiting"):
            attempt()


def test_a_stream_can_be_replied_to_once() -> None:
    connection = server(Peer(), 1)
    with pytest.raises(NotAllowed, match="reply cannot be sent"):
        connection.reply(1)


def test_long_data_is_split_into_frames_without_a_copy() -> None:
    connection = server(Peer(), 1)
    payload = bytes(150 * KIB)
    connection.send_data(1, payload, fin=True)
    buffers = connection.buffers_to_send()
    assert buffers[0::2] == [
        bytes.fromhex("00000001 00010000"),
        bytes.fromhex("00000001 00010000"),
        bytes.fromhex("00000001 01005800"),
    ]
    assert all(isinstance(view, memoryview) and view.obj is payload for view in buffers[1::2])


def test_short_data_is_a_single_buffer() -> None:
    connection = server(Peer(), 1)
    connection.send_data(1, b"short")
    assert connection.buffers_to_send() == [data(1, b"short")]


def test_the_data_that_waits_to_be_sent_is_bounded() -> None:
    connection = server(Peer(), 1, limits=Limits(max_queued=100))
    assert connection.send_window(1) == 100
    connection.send_data(1, bytes(60))
    assert connection.send_window(1) == 32  # 60 and a header of 8
    with pytest.raises(NotAllowed, match="33 bytes are more"):
        connection.send_data(1, bytes(33))
    connection.data_to_send()
    assert connection.send_window(1) == 100


def test_windows_are_not_obeyed_for_a_peer_without_windows() -> None:
    connection = server(Peer(), 1)
    for _ in range(100):
        connection.send_data(1, bytes(64 * KIB))
        connection.data_to_send()
    assert connection.send_window(1) == Limits().max_queued


@pytest.mark.parametrize("shown", [settings(initial_window_size=65536), window_update(1, 1), window_update(0, 1)])
def test_the_windows_of_a_peer_with_windows_are_obeyed(shown: bytes) -> None:
    connection = server(Peer(), 1)
    connection.send_data(1, bytes(60 * KIB))
    connection.data_to_send()
    connection.receive_data(shown)
    assert 4 * KIB <= connection.send_window(1) <= 4 * KIB + 1


def test_the_session_window_is_obeyed_over_all_streams() -> None:
    connection = server_with_windows(1, 3)
    assert connection.send_window(1) == 64 * KIB
    connection.send_data(1, bytes(64 * KIB))
    connection.data_to_send()
    assert (connection.send_window(1), connection.send_window(3)) == (0, 0)
    connection.send_data(1, b"", fin=True)  # takes no room in a window
    assert connection.receive_data(window_update(0, 100)) == [WindowOpened(0)]
    assert connection.send_window(3) == 100


def test_windows_open_for_the_stream_and_the_session() -> None:
    connection = server_with_windows(1)
    connection.send_data(1, bytes(64 * KIB))
    connection.data_to_send()
    assert connection.receive_data(window_update(1, 50)) == [WindowOpened(1)]
    assert connection.send_window(1) == 0
    assert connection.receive_data(window_update(0, 70)) == [WindowOpened(0)]
    assert connection.send_window(1) == 50
    assert connection.receive_data(window_update(1, 50)) == []


def test_a_new_initial_window_changes_the_windows_of_open_streams() -> None:
    peer = Peer()
    connection = server_with_windows(1, peer=peer)
    connection.send_data(1, bytes(60 * KIB))
    connection.data_to_send()
    assert connection.receive_data(settings(initial_window_size=16 * KIB)) == []
    assert connection.send_window(1) == 0
    assert connection.receive_data(window_update(1, 44 * KIB)) == []
    assert connection.receive_data(window_update(1, 1)) == [WindowOpened(1)]
    assert connection.receive_data(settings(initial_window_size=17 * KIB)) == [WindowOpened(0)]
    assert connection.send_window(1) == KIB + 1
    connection.receive_data(peer.syn_stream(3, STDIN))
    connection.reply(3)
    connection.data_to_send()
    assert connection.send_window(3) == 4 * KIB  # the session's


def test_acknowledged_bytes_are_announced_in_halves_of_the_windows() -> None:
    connection = server(Peer(), 1, limits=Limits(stream_window=64 * KIB, session_window=128 * KIB))
    connection.receive_data(data(1, bytes(64 * KIB)))
    connection.acknowledge(1, 32 * KIB - 1)
    assert connection.data_to_send() == b""
    connection.acknowledge(1, 1)
    assert connection.data_to_send() == window_update(1, 32 * KIB)
    connection.acknowledge(1, 32 * KIB)
    assert connection.data_to_send() == window_update(1, 32 * KIB) + window_update(0, 64 * KIB)


def test_no_window_is_announced_for_a_half_closed_stream() -> None:
    connection = server(Peer(), 1)
    connection.receive_data(data(1, bytes(256 * KIB), flags=FIN))
    connection.acknowledge(1, 256 * KIB)
    assert connection.data_to_send() == b""


def test_unacknowledged_bytes_stop_reading() -> None:
    connection = server(Peer(), 1, 3, limits=Limits(session_window=64 * KIB))
    # Each of the two streams takes 1 KiB of the window.
    connection.receive_data(data(1, bytes(40 * KIB)) + data(3, bytes(22 * KIB - 1)))
    assert reads(connection)
    connection.receive_data(data(3, b"x"))
    assert not reads(connection)
    connection.acknowledge(1, 1)
    assert reads(connection)


def test_announced_bytes_that_have_not_arrived_do_not_stop_reading() -> None:
    connection = server(Peer(), 1, limits=Limits(session_window=64 * KIB))
    huge = data(1, bytes(16 * KIB * KIB - 1), flags=FIN)
    events = []
    for at in range(0, len(huge), 32 * KIB):
        assert reads(connection)
        for event in connection.receive_data(huge[at : at + 32 * KIB]):
            if isinstance(event, DataReceived):
                connection.acknowledge(1, len(event.data))
            else:
                events.append(event)
    assert events == [StreamHalfClosed(1)]


def test_acknowledging_too_much_is_refused_and_too_late_is_ignored() -> None:
    connection = server(Peer(), 1)
    connection.receive_data(data(1, b"abc"))
    with pytest.raises(NotAllowed, match="4 bytes of 3"):
        connection.acknowledge(1, 4)
    connection.reset(1)
    connection.data_to_send()
    connection.acknowledge(1, 3)
    assert connection.data_to_send() == b""


def test_a_reset_gives_bytes_back_to_the_session() -> None:
    connection = server(Peer(), 1, limits=Limits(session_window=64 * KIB, stream_window=64 * KIB))
    connection.receive_data(data(1, bytes(64 * KIB)))
    assert not reads(connection)
    connection.reset(1, ResetStatus.INTERNAL_ERROR)
    assert reads(connection)
    assert connection.data_to_send() == rst_stream(1, 6) + window_update(0, 64 * KIB)


def test_the_rest_of_a_frame_of_a_reset_stream_is_dropped() -> None:
    connection = server(Peer(), 1, limits=Limits(session_window=64 * KIB, stream_window=64 * KIB))
    frame = data(1, bytes(64 * KIB), flags=FIN)
    connection.receive_data(frame[:1000])
    connection.reset(1)
    assert connection.receive_data(frame[1000:]) == []
    assert connection.data_to_send() == rst_stream(1, 5) + window_update(0, 64 * KIB)


def test_a_reset_by_the_peer_is_reported_and_not_answered() -> None:
    connection = server(Peer(), 1)
    assert connection.receive_data(rst_stream(1, 5) + rst_stream(1, 5) + rst_stream(99, 5) + rst_stream(0, 5)) == [
        StreamReset(1, ResetStatus.CANCEL, by_peer=True)
    ]
    assert connection.data_to_send() == b""
    connection.reset(1)
    assert connection.data_to_send() == b""


def test_a_closed_stream_is_forgotten_when_its_bytes_are_acknowledged() -> None:
    connection = server(Peer(), 1)
    connection.receive_data(data(1, b"abc", flags=FIN))
    connection.send_data(1, b"", fin=True)
    connection.goaway()
    assert not is_closed(connection)
    connection.acknowledge(1, 3)
    assert is_closed(connection)


def test_resetting_a_closed_stream_sends_nothing() -> None:
    connection = server(Peer(), 1)
    connection.receive_data(data(1, b"abc", flags=FIN))
    connection.send_data(1, b"", fin=True)
    connection.data_to_send()
    connection.reset(1)
    assert connection.data_to_send() == b""


def test_a_reset_of_a_closed_stream_is_not_reported() -> None:
    connection = server(Peer(), 1)
    connection.receive_data(data(1, b"abc", flags=FIN))
    connection.send_data(1, b"", fin=True)
    assert connection.receive_data(rst_stream(1, 5)) == []
    connection.acknowledge(1, 3)


def test_open_streams_continue_after_goaway() -> None:
    peer = Peer()
    connection = server(peer, 1)
    connection.goaway()
    connection.goaway()
    assert connection.data_to_send() == goaway(1, 0)
    assert connection.receive_data(peer.syn_stream(3, STDIN)) == []
    assert joined(connection.receive_data(data(1, b"x"))) == [(1, b"x")]
    assert not is_closed(connection)
    connection.send_data(1, b"bye", fin=True)
    assert connection.receive_data(rst_stream(1, 5) + b"what comes then is not read") == [
        StreamReset(1, 5, by_peer=True),
        ConnectionTerminated(GoAwayStatus.OK, "all streams ended after GOAWAY"),
    ]
    assert is_closed(connection)
    assert connection.data_to_send() == data(1, b"bye", flags=FIN)


def test_headers_ignored_after_goaway_still_update_the_compression() -> None:
    peer = Peer()
    connection = server(peer, 1)
    connection.goaway()
    connection.receive_data(peer.syn_stream(3, STDIN))
    assert connection.receive_data(peer.headers(1, (b"a", b"b"), flags=FIN)) == [StreamHalfClosed(1)]


def test_the_end_of_the_transport_is_reported_once() -> None:
    connection = server(Peer(), 1, 3)
    assert connection.receive_eof() == [
        ConnectionTerminated(GoAwayStatus.OK, "the transport ended with 2 streams open")
    ]
    assert connection.receive_eof() == []
    assert is_closed(connection)


def test_unknown_settings_are_ignored() -> None:
    connection = server(Peer(), 1)
    assert connection.receive_data(control(4, words(2, 1, 5, 0x00FFFFFF, 7))) == []
    assert connection.data_to_send() == b""


@pytest.mark.parametrize("window", [0, 65535, 2**31])
def test_windows_outside_of_the_bounds_are_refused(window: int) -> None:
    with pytest.raises(ValueError, match=f"window of {window} bytes"):
        Limits(stream_window=window)
    with pytest.raises(ValueError, match=f"window of {window} bytes"):
        Limits(session_window=window)
