"""Each bound of a session, reached by frames that a client can send."""

from shim.streaming.spdy import Connection, ConnectionTerminated, StreamOpened, StreamReset
from shim.streaming.spdy.events import Event
from tests.streaming.spdy import wire
from tests.streaming.spdy.client import Deflater, counted, syn_stream

KIB = 1 << 10


class Session:
    """A connection with the default limits, and a client's compressor."""

    def __init__(self, *, streams: int = 0) -> None:
        self.connection = Connection()
        self.deflater = Deflater()
        for number in range(streams):
            self.open(1 + 2 * number)

    def take(self, data: bytes) -> list[Event]:
        return list(self.connection.receive_data(data))

    def open(self, stream: int, *headers: tuple[bytes, bytes]) -> list[Event]:
        return self.take(syn_stream(stream, self.deflater.deflate(wire.block(*headers))))

    def headers(self, size: int) -> list[Event]:
        """Send HEADERS with a block of `size` bytes."""
        return self.take(wire.control(8, wire.words(1) + self.deflater.deflate(bytes(size))))


def why(events: list[Event]) -> str:
    """Return why the session has ended."""
    [ended] = [event.reason for event in events if isinstance(event, ConnectionTerminated)]
    return ended


def test_a_peer_may_open_1000_streams() -> None:
    session = Session(streams=999)
    [opened] = session.open(1999)
    assert isinstance(opened, StreamOpened)
    assert session.open(2001) == []
    assert wire.rst_stream(2001, 3) in b"".join(session.connection.buffers_to_send())


def test_a_control_frame_may_have_16_kib() -> None:
    assert Session().take(wire.control(4, wire.words(2047, *[0] * 2 * 2047))) == []  # 16,380 bytes
    assert "at most 16384 are taken" in why(Session().take(wire.control(4, bytes(16 * KIB + 1))))


def test_a_header_block_may_inflate_to_4_kib() -> None:
    session = Session(streams=1)
    assert session.headers(4 * KIB) == []
    assert "more than 4096 bytes" in why(session.headers(4 * KIB + 1))


def test_a_header_block_may_have_64_values() -> None:
    session = Session()
    [opened] = session.open(1, (b"a", b"\0".join([b"x"] * 64)))
    assert isinstance(opened, StreamOpened)
    assert session.open(3, (b"a", b"\0".join([b"x"] * 65))) == []
    assert wire.rst_stream(3, 1) in b"".join(session.connection.buffers_to_send())


def test_headers_may_inflate_to_256_kib_and_64_times_their_size() -> None:
    session = Session(streams=1)
    sent = inflated = 0
    while not session.connection.closed:
        block = session.deflater.deflate(bytes(4 * KIB))
        sent, inflated = sent + len(block), inflated + 4 * KIB
        session.take(wire.control(8, wire.words(1) + block))
        assert inflated < 1024 * KIB
    assert 0 <= inflated - (256 * KIB + 64 * sent) < 8 * KIB


def test_1_mib_may_be_unacknowledged_less_1_kib_for_each_stream() -> None:
    session = Session(streams=9)
    for stream in (1, 3, 5):
        session.take(wire.data(stream, bytes(256 * KIB)))
    session.take(wire.data(7, bytes(246 * KIB)))
    assert session.connection.wants_data
    session.take(wire.data(9, bytes(2 * KIB)))
    assert not session.connection.wants_data


def test_256_kib_of_a_stream_may_be_unacknowledged() -> None:
    session = Session(streams=1)
    session.take(wire.window_update(0, 1))
    assert session.take(wire.data(1, bytes(256 * KIB)))
    [reset] = session.take(wire.data(1, b"x"))
    assert isinstance(reset, StreamReset)


def test_256_kib_may_wait_for_the_client_in_frames_of_64_kib() -> None:
    session = Session(streams=1)
    session.take(wire.settings(initial_window_size=1 << 20) + wire.window_update(0, 1 << 20))
    session.connection.reply(1)
    session.connection.buffers_to_send()
    room = session.connection.send_window(1)
    assert room == 256 * KIB
    session.connection.send_data(1, bytes(room))
    assert session.connection.send_window(1) == 0
    assert max(map(len, session.connection.buffers_to_send())) == 64 * KIB


def test_64_kib_of_queued_control_frames_stop_reading() -> None:
    session = Session()
    stream, queued = 1, 0
    while session.connection.wants_data:
        session.open(stream)
        session.connection.reset(stream)
        stream, queued = stream + 2, queued + len(wire.rst_stream(1, 5))
        assert queued < 128 * KIB
    assert queued >= 63 * KIB


def test_a_read_may_provoke_256_kib_of_control_frames() -> None:
    session = Session(streams=1)
    count = 256 * KIB // len(wire.ping(1))
    assert "more than 262144 bytes of answers" in why(session.take(wire.ping(1) * (count + 1)))


def test_headers_of_the_kubelets_clients_are_far_below_the_bounds() -> None:
    session = Session()
    for stream in range(1, 2001, 2):
        block = counted({"streamtype": "data", "port": "8080", "requestid": str(stream)}.items())
        [opened] = session.take(syn_stream(stream, session.deflater.deflate(block)))
        assert isinstance(opened, StreamOpened)
