import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.engine.stdcopy import MAX_PAYLOAD, Decoder, Frame, MalformedStream

FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=60)))


def wire(frames: list[Frame]) -> bytes:
    return b"".join(struct.pack(">BxxxI", number, len(data)) + data for number, data in frames)


def merged(frames: list[Frame]) -> list[Frame]:
    """Join neighbours of one stream; where they are cut says nothing."""
    joined: list[Frame] = []
    for number, data in frames:
        if joined and joined[-1][0] == number:
            joined[-1] = (number, joined[-1][1] + data)
        elif data:
            joined.append((number, data))
    return joined


@given(frames=FRAMES, sizes=st.lists(st.integers(1, 30), min_size=1))
def test_frames_are_the_same_however_the_bytes_arrive(frames: list[Frame], sizes: list[int]) -> None:
    decoder, data, seen = Decoder(), wire(frames), list[Frame]()
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        seen += decoder.receive(data[:size])
        data, turn = data[size:], turn + 1
    decoder.end()

    assert merged(seen) == merged(frames)
    assert all(piece for _, piece in seen)


@given(frames=FRAMES.filter(lambda frames: any(data for _, data in frames)), cut=st.integers(1, 10**6))
def test_a_stream_that_ends_inside_a_frame_is_noticed(frames: list[Frame], cut: int) -> None:
    data = wire(frames)
    boundaries = {len(wire(frames[:count])) for count in range(len(frames) + 1)}
    end = cut % len(data)
    decoder = Decoder()
    decoder.receive(data[:end])

    if end in boundaries:
        decoder.end()
    else:
        with pytest.raises(MalformedStream, match="inside a frame"):
            decoder.end()


def test_a_payload_is_not_held_back_until_it_is_complete() -> None:
    decoder = Decoder()

    assert decoder.receive(struct.pack(">BxxxI", 2, 10) + b"abc") == [(2, b"abc")]
    assert decoder.receive(b"defghijk") == [(2, b"defghij")]


def test_neighbours_of_one_stream_come_together() -> None:
    data = wire([(1, b"a"), (1, b""), (1, b"b"), (2, b"c"), (1, b"d")])

    assert Decoder().receive(data) == [(1, b"ab"), (2, b"c"), (1, b"d")]


@pytest.mark.parametrize(
    "header",
    [
        b"\x04\x00\x00\x00\x00\x00\x00\x01",
        b"\x01\x00\x01\x00\x00\x00\x00\x01",
        struct.pack(">BxxxI", 1, MAX_PAYLOAD + 1),
        b"plain te",
    ],
    ids=["stream number", "padding", "size", "no header at all"],
)
def test_what_is_not_the_format_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedStream, match="not a frame header"):
        Decoder().receive(wire([(1, b"good")]) + header)
