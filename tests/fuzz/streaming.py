"""Data from clients of the streaming server: the head of a request, SPDY, WebSocket, and whole sessions."""

import base64
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from hypothesis import strategies as st

from shim.domain.errors import Cancelled
from shim.streaming import spdy
from shim.streaming.http import MAX_HEAD, Refused, RequestReader, check_origin, refusal_bytes, upgrade_of
from shim.streaming.session import Session
from shim.streaming.spdy.headers import DICTIONARY
from shim.streaming.websocket import Channels, ChannelWire, TunnelWire
from shim.streaming.wire import Wire
from tests.fuzz.target import Run, Target, pure
from tests.streaming.client import session_of

MOST_EVENTS = 100_000

HEAD = (
    b"POST /exec/token HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
    b"X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
)
WEBSOCKET_HEAD = (
    b"GET /exec/token HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n"
    b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n"
)


def _head(data: bytes) -> None:
    def outcome(cuts: int) -> tuple[str, object]:
        reader = RequestReader()
        try:
            for at in range(0, len(data), cuts):
                if (request := reader.receive(data[at : at + cuts])) is not None:
                    check_origin(request, hosts=frozenset({"localhost"}))
                    upgrade = upgrade_of(request, spdy=["v4.channel.k8s.io"], websocket=["v5.channel.k8s.io"])
                    return "upgraded", (upgrade, request.path)
        except Refused as refused:
            return "refused", refused
        return "incomplete", len(data)

    word, found = outcome(len(data) or 1)
    if len(data) < MAX_HEAD:
        assert outcome(3)[0] == word
    if isinstance(found, Refused):
        assert refusal_bytes(found).startswith(b"HTTP/1.1 4")
        raise found


# SPDY


def counted(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class Frames:
    """Frames of a client that share the compressor of a session."""

    def __init__(self) -> None:
        self._zlib = zlib.compressobj(zdict=DICTIONARY)

    def control(self, kind: int, payload: bytes, *, flags: int = 0) -> bytes:
        return struct.pack(">HHI", 0x8003, kind, flags << 24 | len(payload)) + payload

    def block(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        pairs = list(headers)
        plain = struct.pack(">I", len(pairs)) + b"".join(counted(name) + counted(value) for name, value in pairs)
        return self._zlib.compress(plain) + self._zlib.flush(zlib.Z_SYNC_FLUSH)

    def syn_stream(self, stream: int, *headers: tuple[bytes, bytes]) -> bytes:
        return self.control(1, struct.pack(">IIH", stream, 0, 0) + self.block(headers))

    def headers(self, stream: int, *headers: tuple[bytes, bytes]) -> bytes:
        return self.control(8, struct.pack(">I", stream) + self.block(headers))

    def data(self, stream: int, data: bytes, *, fin: bool = False) -> bytes:
        return struct.pack(">II", stream, fin << 24 | len(data)) + data


def _good_session() -> bytes:
    frames = Frames()
    return b"".join(
        (
            frames.syn_stream(1, (b"streamtype", b"error")),
            frames.syn_stream(3, (b"streamtype", b"stdin")),
            frames.syn_stream(5, (b"streamtype", b"stdout"), (b"port", b"80")),
            frames.data(3, b"hello"),
            frames.control(4, struct.pack(">IIII", 1, 7, 0, 65536)[:12]),
            frames.control(6, struct.pack(">I", 1)),
            frames.control(9, struct.pack(">II", 5, 1000)),
            frames.headers(3, (b"a", b"b")),
            frames.control(3, struct.pack(">II", 5, 5)),
            frames.data(3, b"bye", fin=True),
            frames.control(7, struct.pack(">II", 0, 0)),
        )
    )


def _bomb() -> bytes:
    """Headers that inflate to 400 times their size, in as many frames as fit in a read."""
    frames = Frames()
    found = bytearray(frames.syn_stream(1, (b"streamtype", b"stdin")))
    while len(found) < 1 << 16:
        found += frames.headers(1, (b"a", b"\0".join([b"ab"] * 10_900)))
    return bytes(found)


def _act(wire: Wire, event: spdy.Event) -> None:
    """React as a session does, and with further calls: answer, send, take."""
    with suppress(spdy.NotAllowed):
        match event:
            case spdy.StreamOpened():
                wire.reply(event.stream_id)
                if (room := wire.send_window(event.stream_id)) > 0:
                    wire.send_data(event.stream_id, b"x" * min(room, 100))
            case spdy.DataReceived():
                wire.acknowledge(event.stream_id, len(event.data))
            case spdy.StreamHalfClosed():
                wire.reset(event.stream_id)
            case _:
                pass


def _fed(make: Callable[[], Wire]) -> Run:
    def run(data: bytes) -> None:
        wire, seen = make(), 0
        cuts = 1 << 16 if len(data) > 1 << 15 else 1 + data[0] * 5 if data else 1
        # The first call has the bytes that arrived with the request, often none.
        for at in range(-cuts, len(data), cuts):
            for event in wire.receive_data(data[max(0, at) : at + cuts]):
                seen += 1
                _act(wire, event)
            wire.buffers_to_send()
            if wire.closed or not wire.wants_data:
                break
        assert seen < MOST_EVENTS
        for event in wire.receive_eof():
            _act(wire, event)

    return run


def _connection() -> Wire:
    return spdy.Connection()


def _channels() -> Wire:
    headers = {number: (("streamtype", name),) for number, name in enumerate(("stdin", "stdout", "stderr", "error"))}
    return ChannelWire(Channels(headers=headers, greetings={1: b""}, closes=True))


def _base64_channels() -> Wire:
    return ChannelWire(Channels(headers={0: (("streamtype", "stdin"),)}, base64=True))


# WebSocket


def frame(payload: bytes, *, code: int = 2, fin: bool = True) -> bytes:
    """Return a client's frame, masked with zeros."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0x80 | 126]) + struct.pack(">H", size)
    return bytes([fin << 7 | code]) + length + bytes(4) + payload


WEBSOCKET_WORDS = (
    *(frame(b"\0x"), frame(b"\xff\0"), frame(b"\x04{}"), frame(b"0eA==", code=1), frame(b"", code=9)),
    *(frame(b"\x03\xe8", code=8), frame(b"a", fin=False), frame(b"b", code=0), b"\x82\xff" + b"\xff" * 8, b"\x88\x80"),
)
MESSAGES = frame(b"\0in") + frame(b"\0", fin=False) + frame(b"put", code=0) + frame(b"p", code=9) + frame(b"\xff\0")
SPDY_WORDS = (
    *(
        b"\x80\x03\0\x01",
        b"\x80\x03\0\x08",
        b"\x80\x03\0\x03\0\0\0\x08",
        b"\x80\x03\0\x04",
        b"\x80\x03\0\x06\0\0\0\x04",
    ),
    *(b"\0\0\0\x01", b"\x7f\xff\xff\xff", b"\x01\0\0\x00", b"\0\xff\xff\xff", b"\0\0\xff\xff"),
)


# Sessions


def _session(make: Callable[[], Wire]) -> Run:
    """Run a session to its end, with an application that answers each stream."""

    def run(data: bytes) -> None:
        failed: list[BaseException] = []
        with session_of(make()) as (session, far):
            server = threading.Thread(target=_serve, args=(session, failed))
            server.start()
            _send(far, data)
            server.join(20)
            assert not server.is_alive(), "the session goes on although its client has gone"
        assert not failed, failed

    return run


def _serve(session: Session, failed: list[BaseException]) -> None:
    try:
        while (channel := session.next_channel(seconds=10)) is not None:
            channel.accept()
            channel.write(b"answer")
            channel.finish()
            channel.abandon()
    except Cancelled:
        return
    except BaseException as error:
        failed.append(error)
        raise


def _send(far: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the session may end before all bytes are sent
        far.sendall(data)
        far.shutdown(socket.SHUT_WR)
    with suppress(OSError):
        while far.recv(65536):
            pass
    far.close()


@contextmanager
def _sessions() -> Iterator[Run]:
    """Run sessions; the first byte of an input selects the protocol."""
    runs = [_session(make) for make in (_connection, TunnelWire, _channels)]
    yield lambda data: runs[data[0] % len(runs) if data else 0](data[1:])


HEADERS = (
    "Host",
    "Connection",
    "Upgrade",
    "Origin",
    "Sec-WebSocket-Key",
    "X-Stream-Protocol-Version",
    "Content-Length",
)
REQUESTS = st.builds(
    lambda method, headers, end: (
        f"{method} /exec/t HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers) + end
    ).encode("latin-1", errors="replace"),
    st.sampled_from(("GET", "POST", "CONNECT", "")),
    st.lists(
        st.tuples(
            st.sampled_from(HEADERS),
            st.sampled_from(("localhost", "Upgrade", "SPDY/3.1", "websocket", "v4.channel.k8s.io", "5", "http://a"))
            | st.text(max_size=9),
        ),
        max_size=9,
    ),
    st.sampled_from(("\r\n", "\r\n\r\nearly", "", "\n")),
)
TARGETS = (
    Target(
        name="streaming-head",
        corpus=[HEAD, WEBSOCKET_HEAD, HEAD + b"early"],
        words=(
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Length: 5\r\n",
            b"\r\n",
            b"Expect: 100-continue\r\n",
            b"\xff: a\r\n",
        ),
        declared=(Refused,),
        open=pure(_head),
        strategy=REQUESTS,
        enormous=(lambda: b"GET / HTTP/1.1\r\nX: " + b"x" * (8 << 20), lambda: b"a" * (8 << 20)),
    ),
    Target(
        name="streaming-spdy",
        corpus=[_good_session()],
        words=SPDY_WORDS,
        declared=(),
        open=pure(_fed(_connection)),
        enormous=(_bomb,),
    ),
    Target(
        name="streaming-tunnel",
        corpus=[frame(_good_session()), b"".join(frame(_good_session()[at : at + 20]) for at in range(0, 300, 20))],
        words=(*WEBSOCKET_WORDS, *SPDY_WORDS),
        declared=(),
        open=pure(_fed(TunnelWire)),
    ),
    Target(
        name="streaming-channels",
        corpus=[MESSAGES],
        words=WEBSOCKET_WORDS,
        declared=(),
        open=pure(_fed(_channels)),
    ),
    Target(
        name="streaming-base64-channels",
        corpus=[
            frame(b"0aGVsbG8=", code=1) + frame(b"0aGV", code=1),
            frame(b"0!!!!", code=1) + frame(b"a ping behind the reason to close", code=9),
        ],
        words=WEBSOCKET_WORDS,
        declared=(),
        open=pure(_fed(_base64_channels)),
    ),
    Target(
        name="streaming-session",
        corpus=[b"\0" + _good_session(), b"\x01" + frame(_good_session()), b"\x02" + MESSAGES],
        words=(*WEBSOCKET_WORDS, *SPDY_WORDS),
        declared=(),
        open=_sessions,
        seconds=30.0,
    ),
)
