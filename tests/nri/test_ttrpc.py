import struct

import pytest

from shim.nri.ttrpc import MESSAGE_LIMIT, REQUEST, Message, Messages, TooLong, encode


@pytest.mark.parametrize("cuts", [1, 9, 10, 11, 1000])
def test_messages_are_assembled_at_any_boundary_of_reads(cuts: int) -> None:
    sent = [Message(1, REQUEST, b""), Message(3, 2, b"hello"), Message(5, REQUEST, b"x" * 300)]
    data = b"".join(map(encode, sent))
    messages = Messages()

    found = [each for at in range(0, len(data), cuts) for each in messages.receive(memoryview(data[at : at + cuts]))]

    assert found == sent


def test_a_message_that_is_too_long_is_refused_by_its_header() -> None:
    assert list(Messages().receive(memoryview(struct.pack(">IIBB", MESSAGE_LIMIT, 1, 1, 0)))) == []

    with pytest.raises(TooLong, match=f"at most {MESSAGE_LIMIT}"):
        list(Messages().receive(memoryview(struct.pack(">IIBB", MESSAGE_LIMIT + 1, 1, 1, 0))))


def test_a_message_that_is_too_long_is_not_encoded() -> None:
    encode(Message(1, REQUEST, b"x" * MESSAGE_LIMIT))
    with pytest.raises(TooLong):
        encode(Message(1, REQUEST, b"x" * (MESSAGE_LIMIT + 1)))
