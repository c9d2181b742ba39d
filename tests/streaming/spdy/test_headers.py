import tracemalloc
import zlib

import pytest

from shim.streaming.spdy.errors import SessionError, StreamError
from shim.streaming.spdy.headers import (
    DICTIONARY,
    Deflater,
    Headers,
    Inflater,
    headers_from_block,
)
from tests.streaming.spdy.client import counted
from tests.streaming.spdy.wire import ZLIB_HEAD, block, stored, words

HEADERS = (("streamtype", "stdin"), ("port", "80"), ("requestid", "0"))


def inflater_of(max_block: int, *, free: int = 1 << 20, ratio: int = 1) -> Inflater:
    return Inflater(max_block=max_block, free=free, ratio=ratio)


def test_the_dictionary_has_the_id_of_the_protocol() -> None:
    assert len(DICTIONARY) == 1423
    assert zlib.adler32(DICTIONARY) == 0xE3C6A7C2


def test_the_dictionary_begins_and_ends_as_in_the_specification() -> None:
    assert DICTIONARY[:16] == bytes.fromhex("00000007 6f7074696f6e73 00000004 68")
    assert DICTIONARY[-9:] == bytes.fromhex("2c 2a 2c 65 6e 71 3d 30 2e")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param((), "00000000", id="none"),
        pytest.param((("a", "1"),), "00000001 00000001 61 00000001 31", id="one"),
        pytest.param((("a", ""),), "00000001 00000001 61 00000000", id="empty-value"),
        pytest.param((("a", "1"), ("a", "2")), "00000001 00000001 61 00000003 31 00 32", id="two-values"),
        pytest.param((("a", "\xff"),), "00000001 00000001 61 00000001 ff", id="eight-bits"),
    ],
)
def test_the_layout_of_a_header_block(headers: Headers, expected: str) -> None:
    assert headers_from_block(bytes.fromhex(expected), stream_id=1, max_values=64) == headers


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(words(1), id="announced-and-absent"),
        pytest.param(words(1, 5) + b"abc", id="name-cut"),
        pytest.param(words(1, 1) + b"a" + words(9) + b"abc", id="value-cut"),
        pytest.param(words(0xFFFFFFFF), id="four-billion-headers"),
        pytest.param(words(1, 0xFFFFFFFF) + b"abc", id="name-of-4-GiB"),
        pytest.param(block((b"a", b"1")) + b"x", id="bytes-behind"),
        pytest.param(block((b"", b"1")), id="empty-name"),
        pytest.param(block((b"A", b"1")), id="upper-case"),
        pytest.param(block((b"a", b"1"), (b"a", b"2")), id="twice"),
        pytest.param(block((b"\xe9", b"1")), id="not-ascii"),
        pytest.param(block((b"a\0b", b"1")), id="nul-in-name"),
        pytest.param(block((b"a", b"\x001")), id="value-begins-with-nul"),
        pytest.param(block((b"a", b"1\0")), id="value-ends-with-nul"),
        pytest.param(block((b"a", b"1\0\x002")), id="empty-among-several"),
    ],
)
def test_an_invalid_block_ends_its_stream(raw: bytes) -> None:
    with pytest.raises(StreamError) as caught:
        headers_from_block(raw, stream_id=7, max_values=64)
    assert (caught.value.stream_id, caught.value.status) == (7, 1)


def test_blocks_of_one_direction_share_a_zlib_stream() -> None:
    deflater, inflater = Deflater(), inflater_of(1000)
    raw = counted(HEADERS)
    first, second = deflater.deflate(raw), deflater.deflate(raw)
    assert len(second) < len(first) < len(raw)
    assert [inflater.inflate(part) for part in (first, second)] == [raw, raw]


def test_a_deflated_block_has_the_dictionary_id_and_ends_at_a_byte() -> None:
    first = Deflater().deflate(counted(HEADERS))
    assert first[1] & 0x20  # FDICT
    assert first[2:6] == bytes.fromhex("e3c6a7c2")
    assert first[-4:] == bytes.fromhex("0000ffff")  # the sync flush that Go's reader stops at
    assert zlib.decompressobj(zdict=DICTIONARY).decompress(first) == counted(HEADERS)


def test_stored_blocks_and_the_largest_window_are_accepted() -> None:
    inflater = inflater_of(1000)
    assert inflater.inflate(stored(b"abc", first=True)) == b"abc"
    assert inflater.inflate(stored(b"def", first=False)) == b"def"


def test_a_block_of_the_maximum_size_is_accepted() -> None:
    raw = bytes(1000)
    assert inflater_of(1000).inflate(Deflater().deflate(raw)) == raw


def test_a_decompression_bomb_is_not_inflated() -> None:
    bomb = Deflater().deflate(bytes(8 << 20))
    assert len(bomb) < 16 * 1024
    inflater = inflater_of(32 * 1024)
    tracemalloc.start()
    with pytest.raises(SessionError, match="more than 32768 bytes"):
        inflater.inflate(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.parametrize(
    "compressed",
    [
        pytest.param(b"\xff" * 20, id="not-zlib"),
        pytest.param(bytes.fromhex("78f9 00000000") + b"\0" * 9, id="another-dictionary"),
        pytest.param(ZLIB_HEAD + b"\x07", id="reserved-block-type"),
        pytest.param(stored(b"abc", first=True)[:6] + b"\0\x03\0\0\0abc", id="wrong-complement"),
    ],
)
def test_a_block_that_is_not_zlib_ends_the_session(compressed: bytes) -> None:
    with pytest.raises(SessionError, match="cannot be inflated"):
        inflater_of(1000).inflate(compressed)


def test_an_ended_zlib_stream_ends_the_session() -> None:
    ender = zlib.compressobj(zdict=DICTIONARY)
    with pytest.raises(SessionError, match="was ended"):
        inflater_of(1000).inflate(ender.compress(block((b"a", b"1"))) + ender.flush())
