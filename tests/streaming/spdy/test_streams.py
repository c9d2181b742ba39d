import pytest

from shim.streaming.spdy.errors import NotAllowed, ResetStatus, SessionError, StreamError
from shim.streaming.spdy.flow import StreamFlow
from shim.streaming.spdy.streams import Part, Side, Stream, StreamTable


def stream(stream_id: int = 1) -> Stream:
    return Stream(stream_id, StreamFlow(stream_id, window=1))


def table(*stream_ids: int) -> StreamTable:
    streams = StreamTable()
    for stream_id in stream_ids:
        streams.take_id(stream_id)
        streams.add(stream(stream_id))
    return streams


@pytest.mark.parametrize("part", Part)
@pytest.mark.parametrize("side", Side)
def test_each_state_allows_its_parts_only(side: Side, part: Part) -> None:
    one = stream()
    one.sending = side
    if (side, part) in {(Side.WAITING, Part.REPLY), (Side.OPEN, Part.DATA)}:
        one.sent(part, fin=False)
        assert one.sending is Side.OPEN
        return
    with pytest.raises(NotAllowed):
        one.sent(part, fin=True)
    assert one.sending is side


def test_nothing_may_arrive_after_fin() -> None:
    one = stream()
    one.expect_receiving()
    one.finish_receiving()
    with pytest.raises(StreamError) as caught:
        one.expect_receiving()
    assert caught.value.status is ResetStatus.STREAM_ALREADY_CLOSED


def test_a_stream_is_over_when_both_directions_are_closed() -> None:
    one = stream()
    one.sent(Part.REPLY, fin=False)
    one.sent(Part.DATA, fin=True)
    after_one = (one.over, one.finished_receiving)
    one.finish_receiving()
    assert [after_one, (one.over, one.finished_receiving)] == [(False, False), (True, True)]


@pytest.mark.parametrize(
    ("before", "stream_id"),
    [
        pytest.param((), 0, id="zero"),
        pytest.param((), 2, id="even"),
        pytest.param((9,), 7, id="backwards"),
    ],
)
def test_ids_out_of_order_end_the_session(before: tuple[int, ...], stream_id: int) -> None:
    with pytest.raises(SessionError, match=f"stream {stream_id} cannot be opened"):
        table(*before).take_id(stream_id)


def test_a_reused_id_ends_only_its_stream() -> None:
    streams = table(1, 3)
    for stream_id in (1, 3):
        with pytest.raises(StreamError, match="opened twice"):
            streams.take_id(stream_id)


def test_gaps_between_ids_are_allowed() -> None:
    assert len(table(1, 99, 1001)) == 3


@pytest.mark.parametrize(
    ("stream_id", "status"),
    [
        pytest.param(1, ResetStatus.PROTOCOL_ERROR, id="closed"),
        pytest.param(5, ResetStatus.INVALID_STREAM, id="never-opened"),
        pytest.param(2, ResetStatus.INVALID_STREAM, id="of-the-server"),
    ],
)
def test_a_frame_of_an_unknown_stream_is_an_error(stream_id: int, status: ResetStatus) -> None:
    streams = table(1, 3)
    streams.remove(streams.live(1))
    with pytest.raises(StreamError) as caught:
        streams.known(stream_id)
    assert caught.value.status is status


def test_a_frame_of_stream_zero_ends_the_session() -> None:
    with pytest.raises(SessionError, match="stream 0"):
        table().known(0)
