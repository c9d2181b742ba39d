import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.engine.stdcopy import MAX_PAYLOAD, Decoder, Frame, MalformedStream

FRAMES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=60)))


def wire(frames: list[Frame]) -> bytes:
    return b"".join(struct.pack(">BxxxI", number, len(data)) + data for number, data in frames)


def merged(frames: list[Frame]) -> list[Frame]:
    """Join consecutive frames of a stream, since their boundaries have no meaning."""
    joined: list[Frame] = []
    for number, data in frames:
        if joined and joined[-1][0] == number:
            joined[-1] = (number, joined[-1][1] + data)
        elif data:
            joined.append((number, data))
    return joined


@given(frames=FRAMES, sizes=st.lists(st.integers(1, 30), min_size=1))
def test_frames_do_not_depend_on_the_pieces(frames: list[Frame], sizes: list[int]) -> None:
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
def test_a_stream_that_ends_inside_a_frame_is_refused(frames: list[Frame], cut: int) -> None:
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


def test_an_incomplete_payload_is_returned_at_once() -> None:
    decoder = Decoder()

    assert decoder.receive(struct.pack(">BxxxI", 2, 10) + b"abc") == [(2, b"abc")]
    assert decoder.receive(b"defghijk") == [(2, b"defghij")]


def test_consecutive_frames_of_a_stream_are_joined() -> None:
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
def test_bytes_of_another_format_are_refused(header: bytes) -> None:
    with pytest.raises(MalformedStream, match="not a frame header"):
        Decoder().receive(wire([(1, b"good")]) + header)
