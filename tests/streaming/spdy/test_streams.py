import pytest

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.frames import MAX_ID
from shim.streaming.spdy.streams import Part, Role, Side, Stream, StreamTable


def stream(stream_id: int = 1, *, opened_here: bool = False) -> Stream:
    return Stream(stream_id, opened_here=opened_here, send_window=1, receive_window=1)


def table(role: Role = Role.SERVER, *peer_ids: int) -> StreamTable:
    streams = StreamTable(role)
    for stream_id in peer_ids:
        streams.take_peer_id(stream_id)
        streams.add(stream(stream_id))
    return streams


@pytest.mark.parametrize("part", Part)
@pytest.mark.parametrize("side", Side)
def test_what_may_come_in_each_state(side: Side, part: Part) -> None:
    allowed = {(Side.WAITING, Part.REPLY), (Side.OPEN, Part.HEADERS), (Side.OPEN, Part.DATA)}
    one = stream()
    one.receiving = one.sending = side
    if (side, part) in allowed:
        one.received(part, fin=False)
        one.sent(part, fin=False)
        assert one.receiving is one.sending is Side.OPEN
        return
    with pytest.raises(StreamError):
        one.received(part, fin=True)
    with pytest.raises(NotAllowed):
        one.sent(part, fin=True)
    assert {one.receiving, one.sending} == {side}


@pytest.mark.parametrize(
    ("side", "part", "status"),
    [
        (Side.WAITING, Part.DATA, ResetStatus.PROTOCOL_ERROR),
        (Side.WAITING, Part.HEADERS, ResetStatus.PROTOCOL_ERROR),
        (Side.OPEN, Part.REPLY, ResetStatus.STREAM_IN_USE),
        (Side.FINISHED, Part.DATA, ResetStatus.STREAM_ALREADY_CLOSED),
        (Side.FINISHED, Part.REPLY, ResetStatus.STREAM_ALREADY_CLOSED),
    ],
)
def test_the_status_of_what_may_not_come(side: Side, part: Part, status: ResetStatus) -> None:
    one = stream()
    one.receiving = side
    with pytest.raises(StreamError) as caught:
        one.received(part, fin=False)
    assert caught.value.status is status


def test_a_stream_is_over_when_both_sides_have_finished() -> None:
    one = stream(opened_here=True)
    one.sent(Part.DATA, fin=True)
    after_one = (one.over, one.finished_receiving)
    one.received(Part.REPLY, fin=True)
    assert [after_one, (one.over, one.finished_receiving)] == [(False, False), (True, True)]


def test_client_counts_odd_and_server_even() -> None:
    client, server = table(Role.CLIENT), table(Role.SERVER)
    assert [client.next_own_id() for _ in range(3)] == [1, 3, 5]
    assert [server.next_own_id() for _ in range(3)] == [2, 4, 6]


def test_ids_do_not_wrap() -> None:
    client = table(Role.CLIENT)
    client._next_id = MAX_ID
    assert client.next_own_id() == MAX_ID
    with pytest.raises(NotAllowed, match="all stream ids"):
        client.next_own_id()


@pytest.mark.parametrize(
    ("role", "before", "stream_id"),
    [
        pytest.param(Role.SERVER, (), 0, id="zero"),
        pytest.param(Role.SERVER, (), 2, id="even-from-a-client"),
        pytest.param(Role.CLIENT, (), 1, id="odd-from-a-server"),
        pytest.param(Role.SERVER, (9,), 7, id="backwards"),
    ],
)
def test_ids_out_of_order_end_the_session(role: Role, before: tuple[int, ...], stream_id: int) -> None:
    with pytest.raises(SessionError, match=f"stream {stream_id} cannot be opened"):
        table(role, *before).take_peer_id(stream_id)


def test_an_id_that_was_the_last_or_is_still_open_ends_the_stream_only() -> None:
    streams = table(Role.SERVER, 1, 3)
    for stream_id in (1, 3):
        with pytest.raises(StreamError, match="opened twice"):
            streams.take_peer_id(stream_id)


def test_gaps_between_ids_are_fine() -> None:
    assert len(table(Role.SERVER, 1, 99, 1001)) == 3


@pytest.mark.parametrize(
    ("stream_id", "status"),
    [
        pytest.param(1, ResetStatus.PROTOCOL_ERROR, id="closed"),
        pytest.param(5, ResetStatus.INVALID_STREAM, id="of-the-peer-never-opened"),
        pytest.param(2, ResetStatus.PROTOCOL_ERROR, id="of-this-side-closed"),
        pytest.param(4, ResetStatus.INVALID_STREAM, id="of-this-side-never-opened"),
    ],
)
def test_frames_of_streams_that_are_not_there(stream_id: int, status: ResetStatus) -> None:
    streams = table(Role.SERVER, 1, 3)
    streams.next_own_id()
    streams.remove(streams.live(1))
    with pytest.raises(StreamError) as caught:
        streams.known(stream_id)
    assert caught.value.status is status


def test_stream_zero_is_none() -> None:
    with pytest.raises(SessionError, match="stream 0"):
        table().known(0)


def test_counting_by_who_opened() -> None:
    streams = table(Role.SERVER, 1, 3)
    streams.add(stream(2, opened_here=True))
    streams.add(stream(4, opened_here=True))
    assert streams.count(opened_here=False) == streams.count(opened_here=True) == 2
    assert [one.stream_id for one in streams.own_after(2)] == [4]
