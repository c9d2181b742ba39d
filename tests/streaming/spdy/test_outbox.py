import pytest

from shim.streaming.spdy.errors import SessionError
from shim.streaming.spdy.outbox import Outbox


def outbox_of(*, room: int = 100, max_control: int = 100, max_answers: int = 100) -> Outbox:
    return Outbox(room=room, max_control=max_control, max_answers=max_answers)


def test_buffers_are_taken_once_and_in_order() -> None:
    outbox = outbox_of()
    outbox.put(b"a")
    outbox.answer(b"bc")
    outbox.put_data(b"head", memoryview(b"short"))
    outbox.put(b"d")
    assert (outbox.size, outbox.room) == (13, 87)
    assert outbox.take() == [b"abc", b"headshort", b"d"]
    assert (outbox.size, outbox.room, outbox.take()) == (0, 100, [])


def test_short_frames_are_merged() -> None:
    outbox = outbox_of(max_answers=1 << 20)
    for _ in range(10_000):
        outbox.put(bytes(12))
    assert len(outbox.take()) == 30


def test_the_room_is_a_soft_limit() -> None:
    outbox = outbox_of(room=2)
    outbox.put(b"abc")
    assert outbox.room == 0


def test_only_waiting_control_frames_congest_the_outbox() -> None:
    outbox = outbox_of(max_control=4)
    states = [outbox.congested]
    outbox.put_data(b"head", memoryview(bytes(1000)))
    outbox.put(b"123")
    states.append(outbox.congested)
    outbox.put(b"4")
    states.append(outbox.congested)
    outbox.take()
    assert [*states, outbox.congested] == [False, False, True, False]


def test_waiting_answers_are_bounded() -> None:
    outbox = outbox_of(max_answers=4)
    outbox.put_data(b"head", memoryview(bytes(1000)))
    for _ in range(3):
        outbox.answer(b"1234")
        with pytest.raises(SessionError, match="more than 4 bytes of answers"):
            outbox.answer(b"5")
        outbox.take()
