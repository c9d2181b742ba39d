import base64
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage

from shim.streaming import spdy
from shim.streaming.websocket import MAX_HELD, MAX_QUEUED, Channels, ChannelWire, TunnelWire
from tests.streaming.client import WebSocketClient, session_of
from tests.streaming.spdy.client import ClientConnection

HEADERS = {number: (("streamtype", kind),) for number, kind in enumerate(("stdin", "stdout", "stderr", "error"))}


def channels(**changes: object) -> Channels:
    return Channels(**({"headers": HEADERS, "greetings": {1: b""}} | changes))  # type: ignore[arg-type]


def sent(*messages: bytes | str, client: Connection | None = None) -> bytes:
    client = client or Connection(ConnectionType.CLIENT)
    return b"".join(client.send(TextMessage(it) if isinstance(it, str) else BytesMessage(it)) for it in messages)


def data_of(events: object) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for event in events:  # type: ignore[attr-defined]
        if isinstance(event, spdy.DataReceived):
            found[event.stream_id] = found.get(event.stream_id, b"") + bytes(event.data)
    return found


def test_all_channels_are_open_from_the_start_and_the_server_greets() -> None:
    wire = ChannelWire(channels())

    opened = list(wire.receive_data(b""))

    assert [event.stream_id for event in opened if isinstance(event, spdy.StreamOpened)] == [0, 1, 2, 3]
    assert b"".join(wire.buffers_to_send()) == b"\x82\x01\x01"
    assert not list(wire.receive_data(b""))


def test_the_first_byte_of_a_message_is_its_channel() -> None:
    wire = ChannelWire(channels())
    wire.send_data(1, b"out")
    wire.send_data(3, memoryview(b"status"))

    assert b"".join(wire.buffers_to_send()) == b"\x82\x04\x01out\x82\x07\x03status"
    assert data_of(wire.receive_data(sent(b"\x00in", b"\x00", b"", b"\x00put"))) == {0: b"input"}


def test_base64_messages_begin_with_the_digit_of_their_channel() -> None:
    wire = ChannelWire(channels(base64=True))
    list(wire.receive_data(b""))
    wire.buffers_to_send()
    wire.send_data(1, b"out")

    assert wire.buffers_to_send() == [b"\x81\x051" + base64.b64encode(b"out")]
    assert data_of(wire.receive_data(sent("0" + base64.b64encode(b"input").decode()))) == {0: b"input"}


@given(cuts=st.lists(st.integers(0, 200), max_size=20), base64_form=st.booleans())
def test_the_events_do_not_depend_on_how_the_bytes_are_split(cuts: list[int], base64_form: bool) -> None:
    payload = bytes(range(100))
    message: bytes | str = b"\x00" + payload
    if base64_form:
        message = "0" + base64.b64encode(payload).decode()
    data = sent(message, message)
    wire = ChannelWire(channels(base64=base64_form))
    got = b""
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(at):
        got += data_of(wire.receive_data(data[start:end])).get(0, b"")

    assert got == payload * 2


def test_a_v5_client_can_close_a_channel() -> None:
    wire = ChannelWire(channels(closes=True))

    events = list(wire.receive_data(sent(b"\x00in", b"\xff\x00")))

    assert data_of(events) == {0: b"in"}
    assert events[-1] == spdy.StreamHalfClosed(0)
    assert not wire.closed


@pytest.mark.parametrize(
    "messages",
    [(b"\x09what",), (b"\xff\x00",), (b"\xff",), (b"\xff\x63",), (b"",)],
    ids=["unknown", "close before v5", "close of nothing", "close of an unknown one", "empty"],
)
def test_messages_without_meaning_are_ignored(messages: tuple[bytes, ...]) -> None:
    wire = ChannelWire(channels())
    list(wire.receive_data(b""))

    assert list(wire.receive_data(sent(*messages))) == []
    assert not wire.closed


@pytest.mark.parametrize(
    ("data", "form"),
    [(b"\xff\xff\xff\xff", False), (b"\x82\x01\x00", False), (sent("0!!!"), True), (sent("0abc"), True)],
    ids=["reserved bits", "not masked", "no base64", "half of base64"],
)
def test_garbage_ends_the_connection(data: bytes, form: bool) -> None:
    wire = ChannelWire(channels(base64=form))
    list(wire.receive_data(b""))
    wire.buffers_to_send()

    events = list(wire.receive_data(data))

    assert isinstance(events[-1], spdy.ConnectionTerminated)
    assert wire.closed
    assert b"".join(wire.buffers_to_send())[:1] == b"\x88"
    with pytest.raises(spdy.NotAllowed):
        wire.send_window(1)


def test_nothing_is_processed_after_the_end_of_the_connection() -> None:
    wire = ChannelWire(Channels(headers={0: HEADERS[0]}, base64=True))
    ping = b"\x89\x81\0\0\0\0x"

    events = list(wire.receive_data(b"\x81\x85\0\0\0\x000!!!!" + ping + sent("0" + base64.b64encode(b"in").decode())))

    assert [type(event) for event in events] == [spdy.StreamOpened, spdy.ConnectionTerminated]
    assert b"".join(wire.buffers_to_send()) == b"\x88\x02\x03\xea"


AFTER_THE_CLOSE = {
    "a ping": Connection(ConnectionType.CLIENT).send(Ping(b"x")),
    "a message": sent(b"\x00in"),
    "a close": Connection(ConnectionType.CLIENT).send(CloseConnection(1000)),
    "a close with junk": b"\x88\x81\0\0\0\0x",
    "garbage": b"\xff\xff",
}


@pytest.mark.parametrize("first", AFTER_THE_CLOSE)
@pytest.mark.parametrize("second", AFTER_THE_CLOSE)
@pytest.mark.parametrize("made", [lambda: ChannelWire(channels()), TunnelWire], ids=["channels", "tunnel"])
def test_nothing_is_sent_after_the_servers_close(
    made: Callable[[], ChannelWire | TunnelWire], first: str, second: str
) -> None:
    wire = made()
    list(wire.receive_data(b""))
    wire.buffers_to_send()
    wire._messages.close(1000)
    assert b"".join(wire.buffers_to_send()) == b"\x88\x02\x03\xe8"

    list(wire.receive_data(AFTER_THE_CLOSE[first]))
    list(wire.receive_data(AFTER_THE_CLOSE[second]))

    assert not b"".join(wire.buffers_to_send())


@given(data=st.binary(max_size=300))
def test_receive_data_never_raises(data: bytes) -> None:
    for wire in (ChannelWire(channels(base64=True, closes=True)), TunnelWire()):
        list(wire.receive_data(data))
        list(wire.receive_data(data))
        wire.receive_eof()


def test_pings_are_answered_and_a_flood_of_pings_stops_reading() -> None:
    wire = ChannelWire(channels())
    client = Connection(ConnectionType.CLIENT)
    list(wire.receive_data(client.send(Ping(b"x" * 100))))
    assert b"".join(wire.buffers_to_send()).endswith(b"x" * 100)
    while wire.wants_data:
        list(wire.receive_data(client.send(Ping(b"x" * 100)) * 100))

    assert sum(map(len, wire.buffers_to_send())) < 2 * MAX_QUEUED
    assert wire.wants_data


def test_unread_input_stops_reading() -> None:
    wire = ChannelWire(channels())
    count = 0
    while wire.wants_data:
        list(wire.receive_data(sent(b"\x00" + bytes(65536))))
        count += 65536
    assert count <= MAX_HELD + 65536

    wire.acknowledge(0, count)

    assert wire.wants_data


def test_the_end_is_a_close_and_its_answer() -> None:
    with session_of(ChannelWire(channels())) as (session, far):
        client = WebSocketClient(far)
        session.finish()
        client.read_to_end()

        assert client.code == 1000


def test_a_session_over_channels_is_served() -> None:
    with session_of(ChannelWire(channels(closes=True))) as (session, far):
        client = WebSocketClient(far)
        found = [session.next_channel(seconds=10) for _ in range(4)]
        stdin, stdout = found[0], found[1]
        assert stdin is not None
        assert stdout is not None
        client.send(b"\x00question")
        client.send(b"\xff\x00")
        assert bytes(stdin.read()) == b"question"
        assert bytes(stdin.read()) == b""
        stdout.write(b"answer")

        assert client.read_messages(2) == [b"\x01", b"\x01answer"]


def test_the_tunnel_carries_spdy_in_messages() -> None:
    wire = TunnelWire()
    inner = ClientConnection()
    stream = inner.open_stream([("streamtype", "data")])
    inner.send_data(stream, b"hello")
    data = inner.data_to_send()

    events: list[object] = list(wire.receive_data(sent(data[:7], data[7:])))
    wire.reply(stream)
    wire.send_data(stream, b"back")
    far = Connection(ConnectionType.CLIENT)
    far.receive_data(b"".join(wire.buffers_to_send()))
    for event in far.events():
        assert isinstance(event, BytesMessage)
        events += inner.receive_data(bytes(event.data))

    assert data_of(events)[stream] == b"helloback"


def test_a_closed_channel_has_no_further_events() -> None:
    wire = ChannelWire(channels(closes=True))
    list(wire.receive_data(sent(b"\xff\x00")))

    assert list(wire.receive_data(sent(b"\x00more", b"\xff\x00"))) == []


def test_a_reset_channel_has_no_further_events() -> None:
    with session_of(ChannelWire(channels(closes=True))) as (session, far):
        client = WebSocketClient(far)
        found = [session.next_channel(seconds=10) for _ in range(4)]
        assert found[0] is not None
        assert found[1] is not None
        found[0].reset()
        for message in (b"\x00more", b"\xff\x00", b"\x01unread"):
            client.send(message)
        assert bytes(found[1].read()) == b"unread"
