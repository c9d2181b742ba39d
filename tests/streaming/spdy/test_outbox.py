import pytest

from shim.streaming.spdy.errors import SessionError
from shim.streaming.spdy.outbox import Outbox


def outbox_of(*, room: int = 100, max_control: int = 100, max_answers: int = 100) -> Outbox:
    return Outbox(room=room, max_control=max_control, max_answers=max_answers)


def test_what_is_put_is_taken_once_in_order() -> None:
    outbox = outbox_of()
    outbox.put(b"a")
    outbox.answer(b"bc")
    outbox.put_data(b"head", memoryview(b"short"))
    outbox.put(b"d")
    assert (outbox.size, outbox.room) == (13, 87)
    assert outbox.take() == [b"abc", b"headshort", b"d"]
    assert (outbox.size, outbox.room, outbox.take()) == (0, 100, [])


def test_short_frames_are_put_together() -> None:
    outbox = outbox_of(max_answers=1 << 20)
    for _ in range(10_000):
        outbox.put(bytes(12))
    assert len(outbox.take()) == 30


def test_the_room_is_a_mark_and_no_wall() -> None:
    outbox = outbox_of(room=2)
    outbox.put(b"abc")
    assert outbox.room == 0


def test_control_frames_that_wait_are_a_reason_to_stop_and_data_is_none() -> None:
    outbox = outbox_of(max_control=4)
    states = [outbox.congested]
    outbox.put_data(b"head", memoryview(bytes(1000)))
    outbox.put(b"123")
    states.append(outbox.congested)
    outbox.put(b"4")
    states.append(outbox.congested)
    outbox.take()
    assert [*states, outbox.congested] == [False, False, True, False]


def test_answers_that_are_not_taken_are_bounded() -> None:
    outbox = outbox_of(max_answers=4)
    outbox.put_data(b"head", memoryview(bytes(1000)))
    for _ in range(3):
        outbox.answer(b"1234")
        with pytest.raises(SessionError, match="more than 4 bytes of answers"):
            outbox.answer(b"5")
        outbox.take()
