"""Encodes and decodes frames (2.2, 2.6): lengths and layouts, without streams and compression.

DATA is not collected: its header becomes a `DataStart`, and its bytes become views, piece by piece as they arrive. So a
frame of 16 MiB, which Go's spdystream may send, takes no memory. Control frames are collected up to a limit. Frames of
an unknown type are skipped (2.2.1).
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from shim.streaming.spdy.errors import SessionError

VERSION = 3  # SPDY/3.1 is version 3 on the wire
MAX_LENGTH = (1 << 24) - 1
MAX_ID = (1 << 31) - 1
FLAG_FIN = 0x01
FLAG_UNIDIRECTIONAL = 0x02

_CONTROL = 0x8000_0000
_WORD = struct.Struct("!I")
_TWO_WORDS = struct.Struct("!II")
_SYN_STREAM = struct.Struct("!IIBB")
_HEAD_SIZE = 8
_NOTHING = memoryview(b"")


class Type(IntEnum):
    """The known control frames."""

    SYN_STREAM = 1
    SYN_REPLY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    HEADERS = 8
    WINDOW_UPDATE = 9


class Setting(IntEnum):
    """The SETTINGS that are sent or obeyed. All others are ignored."""

    MAX_CONCURRENT_STREAMS = 4
    INITIAL_WINDOW_SIZE = 7


@dataclass(frozen=True, slots=True)
class SynStream:
    """A new stream. `block` is the compressed header block, as in the other frames with headers."""

    stream_id: int
    fin: bool
    unidirectional: bool
    block: bytes


@dataclass(frozen=True, slots=True)
class SynReply:
    """The acceptance of a stream."""

    stream_id: int
    fin: bool
    block: bytes


@dataclass(frozen=True, slots=True)
class MoreHeaders:
    """HEADERS: further headers of a stream."""

    stream_id: int
    fin: bool
    block: bytes


@dataclass(frozen=True, slots=True)
class RstStream:
    """The end of a stream."""

    stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class Settings:
    """The values by id. If an id occurs twice, the first value counts (2.6.4)."""

    values: dict[int, int]


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping, or the answer to a ping."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """No new streams may be opened."""

    last_stream_id: int
    status: int


@dataclass(frozen=True, slots=True)
class WindowUpdate:
    """`delta` more bytes may be sent on the stream, or on the session for stream 0."""

    stream_id: int
    delta: int


@dataclass(frozen=True, slots=True)
class DataStart:
    """The header of a DATA frame; `length` bytes follow as `DataPiece`."""

    stream_id: int
    length: int
    fin: bool


@dataclass(frozen=True, slots=True)
class DataPiece:
    """A piece of the payload of the current DATA frame; a frame without payload has an empty piece."""

    data: memoryview
    last: bool


Frame = SynStream | SynReply | MoreHeaders | RstStream | Settings | Ping | GoAway | WindowUpdate | DataStart | DataPiece


def syn_reply_bytes(stream_id: int, block: bytes) -> bytes:
    """Encode SYN_REPLY."""
    return _control(Type.SYN_REPLY, _WORD.pack(stream_id) + block)


def rst_stream_bytes(stream_id: int, status: int) -> bytes:
    """Encode RST_STREAM."""
    return _control(Type.RST_STREAM, _TWO_WORDS.pack(stream_id, status))


def settings_bytes(values: Iterable[tuple[Setting, int]]) -> bytes:
    """Encode SETTINGS, lowest id first."""
    pairs = [_TWO_WORDS.pack(setting, value) for setting, value in sorted(values)]
    return _control(Type.SETTINGS, _WORD.pack(len(pairs)) + b"".join(pairs))


def ping_bytes(ping_id: int) -> bytes:
    """Encode PING."""
    return _control(Type.PING, _WORD.pack(ping_id))


def goaway_bytes(last_stream_id: int, status: int) -> bytes:
    """Encode GOAWAY."""
    return _control(Type.GOAWAY, _TWO_WORDS.pack(last_stream_id, status))


def window_update_bytes(stream_id: int, delta: int) -> bytes:
    """Encode WINDOW_UPDATE."""
    return _control(Type.WINDOW_UPDATE, _TWO_WORDS.pack(stream_id, delta))


def data_head(stream_id: int, length: int, *, fin: bool) -> bytes:
    """Encode the header of a DATA frame; the payload must follow."""
    return _TWO_WORDS.pack(stream_id, FLAG_FIN * fin << 24 | length)


def _control(kind: Type, payload: bytes) -> bytes:
    return _TWO_WORDS.pack(_CONTROL | VERSION << 16 | kind, len(payload)) + payload


def _syn_stream(flags: int, payload: bytes) -> SynStream:
    stream_id, _associated, _priority, _slot = _SYN_STREAM.unpack_from(payload)
    return SynStream(
        stream_id=stream_id & MAX_ID,
        fin=bool(flags & FLAG_FIN),
        unidirectional=bool(flags & FLAG_UNIDIRECTIONAL),
        block=payload[_SYN_STREAM.size :],
    )


def _syn_reply(flags: int, payload: bytes) -> SynReply:
    (stream_id,) = _WORD.unpack_from(payload)
    return SynReply(stream_id & MAX_ID, bool(flags & FLAG_FIN), payload[_WORD.size :])


def _headers(flags: int, payload: bytes) -> MoreHeaders:
    (stream_id,) = _WORD.unpack_from(payload)
    return MoreHeaders(stream_id & MAX_ID, bool(flags & FLAG_FIN), payload[_WORD.size :])


def _rst_stream(_flags: int, payload: bytes) -> RstStream:
    stream_id, status = _TWO_WORDS.unpack(payload)
    return RstStream(stream_id & MAX_ID, status)


def _settings(_flags: int, payload: bytes) -> Settings:
    (count,) = _WORD.unpack_from(payload)
    if len(payload) != _WORD.size + count * _TWO_WORDS.size:
        raise SessionError(f"SETTINGS says {count} entries in {len(payload)} bytes")
    values: dict[int, int] = {}
    for setting, value in _TWO_WORDS.iter_unpack(payload[_WORD.size :]):
        values.setdefault(setting & MAX_LENGTH, value)
    return Settings(values)


def _ping(_flags: int, payload: bytes) -> Ping:
    return Ping(_WORD.unpack(payload)[0])


def _goaway(_flags: int, payload: bytes) -> GoAway:
    last, status = _TWO_WORDS.unpack(payload)
    return GoAway(last & MAX_ID, status)


def _window_update(_flags: int, payload: bytes) -> WindowUpdate:
    stream_id, delta = _TWO_WORDS.unpack(payload)
    return WindowUpdate(stream_id & MAX_ID, delta & MAX_ID)


_DECODERS: dict[int, Callable[[int, bytes], Frame]] = {
    Type.SYN_STREAM: _syn_stream,
    Type.SYN_REPLY: _syn_reply,
    Type.RST_STREAM: _rst_stream,
    Type.SETTINGS: _settings,
    Type.PING: _ping,
    Type.GOAWAY: _goaway,
    Type.HEADERS: _headers,
    Type.WINDOW_UPDATE: _window_update,
}


class FrameReader:
    """Splits received bytes into frames."""

    def __init__(self, *, max_control: int) -> None:
        """`max_control` is the maximum payload of a control frame in bytes."""
        self._max_control = max_control
        self._partial = bytearray()  # an incomplete frame header or payload of a control frame
        self._kind = 0  # of the control frame being collected; 0 while a header is collected
        self._flags = 0
        self._wanted = _HEAD_SIZE  # bytes until `_partial` is complete
        self._data_left = 0  # bytes of the DATA frame still to arrive
        self._skip_left = 0  # bytes of a frame of unknown type still to arrive

    def read(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames and pieces that `data` completes. Raise SessionError for malformed bytes."""
        view = memoryview(data)
        while view:
            if self._data_left:
                piece = view[: self._data_left]
                self._data_left -= len(piece)
                view = view[len(piece) :]
                yield DataPiece(piece, last=not self._data_left)
            elif self._skip_left:
                skipped = min(self._skip_left, len(view))
                self._skip_left -= skipped
                view = view[skipped:]
            else:
                part = view[: self._wanted - len(self._partial)]
                view = view[len(part) :]
                yield from self._collect(part)

    def _collect(self, part: memoryview) -> Iterator[Frame]:
        if len(self._partial) + len(part) < self._wanted:
            self._partial += part
            return
        whole = b"".join((self._partial, part))
        self._partial.clear()
        if self._kind:
            yield self._control(whole)
        else:
            yield from self._head(whole)

    def _head(self, head: bytes) -> Iterator[Frame]:
        word, rest = _TWO_WORDS.unpack(head)
        flags, length = rest >> 24, rest & MAX_LENGTH
        if word & _CONTROL:
            self._expect_control(word, flags, length)
            if not self._wanted:
                yield self._control(b"")
            return
        self._data_left = length
        yield DataStart(word, length, bool(flags & FLAG_FIN))
        if not length:
            yield DataPiece(_NOTHING, last=True)

    def _expect_control(self, word: int, flags: int, length: int) -> None:
        version, kind = word >> 16 & 0x7FFF, word & 0xFFFF
        if version != VERSION:
            raise SessionError(f"control frame of version {version}")
        if kind not in _DECODERS:
            self._skip_left = length
            return
        if length > self._max_control:
            raise SessionError(f"{Type(kind).name} of {length} bytes, at most {self._max_control} are taken")
        self._kind, self._flags, self._wanted = kind, flags, length

    def _control(self, payload: bytes) -> Frame:
        kind, self._kind, self._wanted = self._kind, 0, _HEAD_SIZE
        try:
            return _DECODERS[kind](self._flags, payload)
        except struct.error as exc:
            raise SessionError(f"{Type(kind).name} cannot have {len(payload)} bytes") from exc
