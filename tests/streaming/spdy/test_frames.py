import pytest

from shim.streaming.spdy import frames
from shim.streaming.spdy.errors import SessionError
from shim.streaming.spdy.frames import (
    DataPiece,
    DataStart,
    Frame,
    FrameReader,
    GoAway,
    MoreHeaders,
    Ping,
    RstStream,
    Settings,
    SynReply,
    SynStream,
    WindowUpdate,
)
from tests.streaming.spdy.wire import control, data, words

SYN = SynStream(stream_id=3, fin=True, unidirectional=False, block=b"\xaa\xbb")

WIRE: dict[str, tuple[str, Frame]] = {
    "syn-stream": ("80030001 0100000c 00000003 00000001 a000 aabb", SYN),
    "syn-reply": ("80030002 00000006 00000003 aabb", SynReply(3, fin=False, block=b"\xaa\xbb")),
    "syn-reply-fin": ("80030002 01000004 00000003", SynReply(3, fin=True, block=b"")),
    "rst-stream": ("80030003 00000008 00000003 00000005", RstStream(3, 5)),
    "settings": ("80030004 00000014 00000002 00000004 000000c8 00000007 00040000", Settings({4: 200, 7: 262144})),
    "ping": ("80030006 00000004 00000009", Ping(9)),
    "ping-of-32-bits": ("80030006 00000004 ffffffff", Ping(0xFFFFFFFF)),
    "goaway": ("80030007 00000008 0000000b 00000001", GoAway(11, 1)),
    "headers": ("80030008 01000005 00000003 aa", MoreHeaders(3, fin=True, block=b"\xaa")),
    "window-update": ("80030009 00000008 00000003 7fffffff", WindowUpdate(3, 0x7FFFFFFF)),
}

WRITTEN: dict[str, bytes] = {
    "syn-reply": frames.syn_reply_bytes(3, b"\xaa\xbb"),
    "rst-stream": frames.rst_stream_bytes(3, 5),
    "settings": frames.settings_bytes(
        ((frames.Setting.INITIAL_WINDOW_SIZE, 262144), (frames.Setting.MAX_CONCURRENT_STREAMS, 200))
    ),
    "ping": frames.ping_bytes(9),
    "ping-of-32-bits": frames.ping_bytes(0xFFFFFFFF),
    "goaway": frames.goaway_bytes(11, 1),
    "window-update": frames.window_update_bytes(3, 0x7FFFFFFF),
}

ALL = b"".join(bytes.fromhex(wire) for wire, _ in WIRE.values())


def read(*chunks: bytes, max_control: int = 100) -> list[Frame]:
    reader = FrameReader(max_control=max_control)
    return [frame for chunk in chunks for frame in reader.read(chunk)]


@pytest.mark.parametrize("name", WIRE)
def test_frames_are_encoded_and_decoded(name: str) -> None:
    wire, frame = WIRE[name]
    assert WRITTEN.get(name, bytes.fromhex(wire)) == bytes.fromhex(wire)
    assert read(bytes.fromhex(wire)) == [frame]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 100])
def test_the_frames_do_not_depend_on_how_the_bytes_are_split(size: int) -> None:
    chunks = [ALL[at : at + size] for at in range(0, len(ALL), size)]
    assert read(*chunks) == [frame for _, frame in WIRE.values()]


def test_data_is_delivered_in_pieces_as_it_arrives() -> None:
    assert read(bytes.fromhex("00000005 01000006 6162"), b"cd", b"ef" + data(7, b"g")) == [
        DataStart(5, 6, fin=True),
        DataPiece(memoryview(b"ab"), last=False),
        DataPiece(memoryview(b"cd"), last=False),
        DataPiece(memoryview(b"ef"), last=True),
        DataStart(7, 1, fin=False),
        DataPiece(memoryview(b"g"), last=True),
    ]


def test_a_data_frame_without_payload_has_an_empty_piece() -> None:
    assert read(data(5, flags=1)) == [DataStart(5, 0, fin=True), DataPiece(memoryview(b""), last=True)]


def test_data_is_not_copied() -> None:
    chunk = data(5, b"payload")
    piece = read(chunk)[1]
    assert isinstance(piece, DataPiece)
    assert piece.data.obj is chunk


def test_the_header_of_a_data_frame() -> None:
    assert frames.data_head(5, 0xABCDEF, fin=True) == bytes.fromhex("00000005 01abcdef")


def test_reserved_bits_are_ignored() -> None:
    assert read(bytes.fromhex("80030003 00000008 80000003 00000005")) == [RstStream(3, 5)]
    assert read(bytes.fromhex("80030009 00000008 80000003 80000001")) == [WindowUpdate(3, 1)]


def test_the_first_value_of_a_duplicate_setting_counts() -> None:
    assert read(control(4, words(2, 7, 1000, 0x01000007, 2000))) == [Settings({7: 1000})]


@pytest.mark.parametrize("kind", [0, 5, 10, 11, 0xFFFF])
def test_unknown_control_frames_are_skipped(kind: int) -> None:
    unknown = control(kind, bytes(70_000))
    assert read(*(unknown[at : at + 999] for at in range(0, len(unknown), 999)), control(6, words(9))) == [Ping(9)]
    assert read(control(kind) + control(6, words(9))) == [Ping(9)]


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(control(1, bytes(9)), id="syn-stream-short"),
        pytest.param(control(2, bytes(3)), id="syn-reply-short"),
        pytest.param(control(2), id="syn-reply-empty"),
        pytest.param(control(3, bytes(9)), id="rst-stream-long"),
        pytest.param(control(4, words(2, 7, 1)), id="settings-short"),
        pytest.param(control(4, words(0, 7, 1)), id="settings-long"),
        pytest.param(control(4, words(0xFFFFFFFF)), id="settings-many"),
        pytest.param(control(4), id="settings-empty"),
        pytest.param(control(6, bytes(3)), id="ping-short"),
        pytest.param(control(7, bytes(4)), id="goaway-of-spdy-2"),
        pytest.param(control(8), id="headers-empty"),
        pytest.param(control(9, bytes(12)), id="window-update-long"),
    ],
)
def test_a_control_frame_with_a_wrong_length_ends_the_session(wire: bytes) -> None:
    with pytest.raises(SessionError, match=r"cannot have \d+ bytes|entries"):
        read(wire)


def test_a_control_frame_of_another_version_ends_the_session() -> None:
    with pytest.raises(SessionError, match="version 2"):
        read(control(6, words(1), version=2))


def test_the_header_of_an_oversized_control_frame_ends_the_session() -> None:
    with pytest.raises(SessionError, match="SYN_STREAM of 101 bytes, at most 100"):
        read(control(1, bytes(101))[:8])
    assert len(read(control(1, bytes(100)))) == 1
