import pytest

from shim.streaming.spdy.errors import SessionError
from shim.streaming.spdy.outbox import Outbox


def test_what_is_put_is_taken_once_in_order() -> None:
    outbox = Outbox(room=100, max_answers=100)
    outbox.put(b"a")
    outbox.answer(b"bc")
    outbox.put_data(b"head", memoryview(b"short"))
    assert (outbox.size, outbox.room) == (12, 88)
    assert outbox.take() == [b"a", b"bc", b"headshort"]
    assert (outbox.size, outbox.room, outbox.take()) == (0, 100, [])


def test_the_room_is_a_mark_and_no_wall() -> None:
    outbox = Outbox(room=2, max_answers=100)
    outbox.put(b"abc")
    assert outbox.room == 0


def test_answers_that_nobody_takes_are_bounded() -> None:
    outbox = Outbox(room=100, max_answers=4)
    outbox.put(bytes(1000))
    for _ in range(3):
        outbox.answer(b"1234")
        with pytest.raises(SessionError, match="more than 4 bytes of answers"):
            outbox.answer(b"5")
        outbox.take()
