import struct

import pytest

from shim.nri.mux import FRAME_LIMIT, PLUGIN, RUNTIME, Demultiplexer, ProtocolError, frames


def taken(data: bytes, *, cuts: int) -> list[tuple[int, bytes]]:
    """Demultiplex `data` in pieces of `cuts` bytes; join consecutive pieces of a connection."""
    demultiplexer, found = Demultiplexer(), list[tuple[int, bytes]]()
    for at in range(0, len(data), cuts):
        for connection, piece in demultiplexer.receive(memoryview(data[at : at + cuts])):
            if found and found[-1][0] == connection:
                found[-1] = connection, found[-1][1] + bytes(piece)
            else:
                found.append((connection, bytes(piece)))
    return found


@pytest.mark.parametrize("cuts", [1, 3, 8, 9, 100])
def test_frames_are_split_at_any_boundary_of_reads(cuts: int) -> None:
    data = struct.pack(">II", 1, 3) + b"abc" + struct.pack(">II", 7, 0) + struct.pack(">II", 2, 1) + b"d"

    assert taken(data, cuts=cuts) == [(1, b"abc"), (2, b"d")]


def test_a_frame_that_is_too_long_is_refused_by_its_header() -> None:
    demultiplexer = Demultiplexer()
    assert list(demultiplexer.receive(memoryview(struct.pack(">II", 1, FRAME_LIMIT)))) == []

    with pytest.raises(ProtocolError, match=f"at most {FRAME_LIMIT}"):
        list(Demultiplexer().receive(memoryview(struct.pack(">II", 1, FRAME_LIMIT + 1))))


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 1 << 20])
def test_a_message_has_at_most_two_frames_and_the_first_fits_a_readers_buffer(size: int) -> None:
    data = frames(RUNTIME, b"x" * size)

    sizes = []
    while data:
        connection, length = struct.unpack_from(">II", data)
        sizes.append(length)
        assert (connection, data[8 : 8 + length]) == (RUNTIME, b"x" * length)
        data = data[8 + length :]
    assert sum(sizes) == size
    assert len(sizes) <= 2
    assert all(length <= 4096 for length in sizes[:1])


def test_interleaved_connections_are_separated() -> None:
    assert taken(frames(PLUGIN, b"ab") + frames(RUNTIME, b"cd"), cuts=5) == [(PLUGIN, b"ab"), (RUNTIME, b"cd")]
