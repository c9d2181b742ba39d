"""The client's side of SPDY/3.1, which the tests run against the server's side.

It opens streams, keeps to the server's windows, and gives its own, as the specification has it. It shares the cutting
of frames with the server and nothing else.
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from shim.streaming import spdy
from shim.streaming.spdy import frames
from shim.streaming.spdy.headers import DICTIONARY
from tests.streaming.spdy import wire

WINDOW = 64 * 1024


@dataclass(frozen=True, slots=True)
class StreamReplied:
    """The server accepted a stream."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class PingAcked:
    """The server answered a ping."""

    ping_id: int


@dataclass(frozen=True, slots=True)
class GoAwayReceived:
    """The server refuses new streams."""

    last_stream_id: int
    status: int


Event = spdy.Event | StreamReplied | PingAcked | GoAwayReceived


def counted(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the uncompressed block of these headers."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return wire.block(*((name.encode(), "\0".join(several).encode("latin-1")) for name, several in values.items()))


class Deflater:
    """Compresses the blocks of one direction as Go does: level 9, the largest window."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(level=9, zdict=DICTIONARY)

    def deflate(self, block: bytes) -> bytes:
        return self._zlib.compress(block) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


def syn_stream(stream_id: int, block: bytes, *, flags: int = 0) -> bytes:
    """Return a SYN_STREAM frame; `block` is compressed."""
    return wire.control(1, wire.words(stream_id, 0) + b"\0\0" + block, flags=flags)


class ClientConnection:
    """A session of a client with windows of the default size."""

    def __init__(self) -> None:
        self._reader = frames.FrameReader(max_control=1 << 16)
        self._deflater = Deflater()
        self._inflater = zlib.decompressobj(zdict=DICTIONARY)
        self._out = bytearray(wire.settings(initial_window_size=WINDOW))
        self._initial = WINDOW
        self._next_id = self._next_ping = 1
        self._session_window = WINDOW
        self._moved: dict[int, int] = {}  # send windows of streams, relative to the initial window
        self._receiving: set[int] = set()
        self._at: frames.DataStart | None = None
        self.closed = False

    @property
    def queued(self) -> int:
        return len(self._out)

    def data_to_send(self) -> bytes:
        sent, self._out = bytes(self._out), bytearray()
        return sent

    @property
    def open_streams(self) -> set[int]:
        return set(self._moved) | self._receiving

    def open_stream(self, headers: Iterable[tuple[str, str]], *, fin: bool = False) -> int:
        stream_id = self._next_id
        self._next_id += 2
        self._out += syn_stream(stream_id, self._deflater.deflate(counted(headers)), flags=wire.FIN * fin)
        self._receiving.add(stream_id)
        if not fin:
            self._moved[stream_id] = 0
        return stream_id

    def send_window(self, stream_id: int) -> int:
        if stream_id not in self._moved:
            raise spdy.NotAllowed(f"stream {stream_id} is closed or finished")
        return max(0, min(self._initial + self._moved[stream_id], self._session_window))

    def send_data(self, stream_id: int, data: bytes, *, fin: bool = False) -> None:
        assert len(data) <= self.send_window(stream_id)
        self._moved[stream_id] -= len(data)
        self._session_window -= len(data)
        if data or fin:
            self._out += wire.data(stream_id, data, flags=wire.FIN * fin)
        if fin:
            del self._moved[stream_id]

    def acknowledge(self, stream_id: int, count: int) -> None:
        if stream_id in self._receiving and count:
            self._out += wire.window_update(stream_id, count)
        if count:
            self._out += wire.window_update(0, count)

    def reset(self, stream_id: int) -> None:
        if stream_id in self.open_streams:
            self._out += wire.rst_stream(stream_id, 5)
        self._forget(stream_id)

    def ping(self) -> int:
        ping_id = self._next_ping
        self._next_ping += 2
        self._out += wire.ping(ping_id)
        return ping_id

    def goaway(self) -> None:
        self._out += wire.goaway(0, 0)

    def receive_eof(self) -> list[Event]:
        self.closed = True
        return []

    def receive_data(self, data: bytes) -> list[Event]:
        return [event for frame in self._reader.read(data) for event in self._events(frame)]

    def _forget(self, stream_id: int) -> None:
        self._moved.pop(stream_id, None)
        self._receiving.discard(stream_id)

    def _events(self, frame: frames.Frame) -> list[Event]:
        match frame:
            case frames.DataStart():
                self._at = frame
            case frames.DataPiece():
                return self._piece(frame)
            case frames.SynReply(stream_id, False, block):
                assert self._inflater.decompress(block) == wire.block()
                return [StreamReplied(stream_id)]
            case frames.RstStream(stream_id, status):
                was_open = stream_id in self.open_streams
                self._forget(stream_id)
                return [spdy.StreamReset(stream_id, status, by_peer=True)] if was_open else []
            case frames.Settings(values):
                self._initial = values.get(frames.Setting.INITIAL_WINDOW_SIZE, self._initial)
                return [spdy.WindowOpened(0)]
            case frames.WindowUpdate(0, delta):
                self._session_window += delta
                return [spdy.WindowOpened(0)]
            case frames.WindowUpdate(stream_id, delta):
                if stream_id in self._moved:
                    self._moved[stream_id] += delta
                return [spdy.WindowOpened(stream_id)]
            case frames.Ping(ping_id):
                return [PingAcked(ping_id)]
            case frames.GoAway(last, status):
                return [GoAwayReceived(last, status)]
            case _:
                raise AssertionError(f"a server does not send {frame}")
        return []

    def _piece(self, piece: frames.DataPiece) -> list[Event]:
        assert self._at is not None
        stream_id = self._at.stream_id
        if stream_id not in self._receiving:  # the stream was reset while the frame was in transit
            if piece.data:
                self._out += wire.window_update(0, len(piece.data))
            return []
        events: list[Event] = []
        if piece.data:
            events.append(spdy.DataReceived(stream_id, piece.data))
        if piece.last and self._at.fin:
            self._receiving.discard(stream_id)
            events.append(spdy.StreamHalfClosed(stream_id))
        return events
