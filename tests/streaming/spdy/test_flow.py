import pytest

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.flow import INITIAL_WINDOW, MAX_WINDOW, Flow


class Peer:
    """Return a flow with small windows, and the list of its announcements."""

    def __init__(self, *, windows: bool = True) -> None:
        self.announced: list[tuple[int, int]] = []
        self.flow = Flow(
            stream_window=10, session_window=20, stream_memory=2, update=lambda *update: self.announced.append(update)
        )
        if windows:
            self.flow.set_initial(INITIAL_WINDOW)


def test_the_initial_window_is_64_kib() -> None:
    peer = Peer()
    assert peer.flow.room(peer.flow.stream(1), 1 << 20) == INITIAL_WINDOW == 65536


def test_a_send_window_may_become_negative_and_recover() -> None:
    flow = Peer().flow
    stream = flow.stream(1)
    flow.spend(stream, 60 * 1024)
    assert not flow.set_initial(16 * 1024)  # the example of 2.6.8
    assert flow.room(stream, 1 << 20) == 0
    assert not flow.widen_stream(stream, 44 * 1024)
    assert flow.widen_stream(stream, 1)
    assert flow.room(stream, 1 << 20) == 1


def test_send_windows_have_a_maximum_size() -> None:
    flow = Peer().flow
    stream = flow.stream(1)
    flow.widen_stream(stream, MAX_WINDOW - INITIAL_WINDOW)
    flow.widen_session(MAX_WINDOW - INITIAL_WINDOW)
    with pytest.raises(StreamError, match="too large"):
        flow.widen_stream(stream, 1)
    with pytest.raises(SessionError, match="for the session"):
        flow.widen_session(1)
    with pytest.raises(SessionError, match="initial window"):
        flow.set_initial(MAX_WINDOW + 1)


def test_an_initial_window_may_make_the_window_of_a_stream_too_large() -> None:
    flow = Peer().flow
    stream = flow.stream(1)
    flow.widen_stream(stream, 1000)
    flow.set_initial(MAX_WINDOW)
    assert flow.room(stream, 100) == 100


def test_a_peer_with_windows_must_not_exceed_them() -> None:
    flow = Peer().flow
    stream = flow.stream(1)
    flow.charge_session(11)
    with pytest.raises(StreamError) as caught:
        flow.charge_stream(stream, 11)
    assert caught.value.status is ResetStatus.FLOW_CONTROL_ERROR
    with pytest.raises(SessionError, match="does not fit"):
        flow.charge_session(10)


def test_unacknowledged_bytes_stop_reading_from_a_peer_without_windows() -> None:
    flow = Peer(windows=False).flow
    stream = flow.stream(1)
    flow.charge_session(100)
    flow.charge_stream(stream, 100)
    flow.deliver(stream, 19)
    assert not flow.full(streams=0)
    flow.deliver(stream, 1)
    assert flow.full(streams=0)


def test_windows_are_announced_in_halves() -> None:
    peer = Peer()
    stream = peer.flow.stream(1)
    peer.flow.charge_session(10)
    peer.flow.charge_stream(stream, 10)
    peer.flow.deliver(stream, 10)
    seen = []
    for count in (4, 1, 1, 4):
        peer.flow.consume(stream, count, more=True)
        seen.append(list(peer.announced))
        peer.announced.clear()
    assert seen == [[], [(1, 5)], [], [(1, 5), (0, 10)]]


def test_bytes_that_were_not_delivered_cannot_be_acknowledged() -> None:
    flow = Peer().flow
    stream = flow.stream(1)
    flow.charge_stream(stream, 10)
    flow.deliver(stream, 4)
    flow.consume(stream, 3, more=True)
    assert (stream.owed, stream.held) == (7, 1)
    for count in (2, -1):
        with pytest.raises(NotAllowed, match="acknowledging"):
            flow.consume(stream, count, more=True)


def test_a_closed_stream_gives_its_bytes_back_once() -> None:
    peer = Peer()
    stream = peer.flow.stream(1)
    peer.flow.charge_session(10)
    peer.flow.charge_stream(stream, 10)
    peer.flow.deliver(stream, 4)
    peer.flow.forget(stream)
    peer.flow.forget(stream)
    assert peer.announced == [(0, 10)]
    assert not peer.flow.full(streams=0)


def test_streams_count_as_memory_and_leave_a_quarter_for_payload() -> None:
    peer = Peer()
    stream = peer.flow.stream(1)
    peer.flow.deliver(stream, 5)

    assert not peer.flow.full(streams=7)
    assert peer.flow.full(streams=8)
    peer.flow.consume(stream, 1, more=True)
    assert not peer.flow.full(streams=1000)
