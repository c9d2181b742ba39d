"""Properties for any bytes, any split, and any order of valid operations."""

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shim.streaming.spdy import (
    ConnectionTerminated,
    DataReceived,
    Event,
    Limits,
    NotAllowed,
    StreamHalfClosed,
    StreamOpened,
    StreamReset,
    WindowOpened,
)
from tests.streaming.spdy import wire
from tests.streaming.spdy.client import ClientConnection, PingAcked, StreamReplied
from tests.streaming.spdy.wire import Connection, Peer

KIB = 1024
SMALL = Limits(
    max_streams=4,
    max_control_frame=8 * KIB,
    max_header_block=8 * KIB,
    stream_window=64 * KIB,
    session_window=64 * KIB,
    max_frame=1000,
    max_queued=64 * KIB,
    max_answers=8 * KIB,
)

ROLES = ("client", "server")

ids = st.one_of(st.sampled_from([0, 1, 2, 3, 4, 5]), st.integers(0, 2**31 - 1))
numbers = st.one_of(st.sampled_from([0, 1, 65536, 2**31 - 1, 2**32 - 1]), st.integers(0, 2**32 - 1))
fields = st.binary(max_size=6)
flags = st.integers(0, 3)
pairs = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"A", b""]), fields), max_size=3)


@st.composite
def wires(draw: st.DrawFn) -> bytes:
    """Generate frames of all kinds, mostly valid, in any order, perhaps damaged."""
    peer = Peer()
    makers: list[Callable[[], bytes]] = [
        lambda: peer.syn_stream(draw(ids), *draw(pairs), flags=draw(flags)),
        lambda: peer.syn_reply(draw(ids), *draw(pairs), flags=draw(flags)),
        lambda: peer.headers(draw(ids), *draw(pairs), flags=draw(flags)),
        lambda: wire.data(draw(ids), draw(st.binary(max_size=300)), flags=draw(flags)),
        lambda: wire.rst_stream(draw(ids), draw(numbers)),
        lambda: wire.settings(max_concurrent_streams=draw(numbers), initial_window_size=draw(numbers)),
        lambda: wire.ping(draw(numbers)),
        lambda: wire.goaway(draw(ids), draw(numbers)),
        lambda: wire.window_update(draw(ids), draw(numbers)),
        lambda: wire.control(draw(st.integers(0, 20)), draw(st.binary(max_size=30)), flags=draw(flags)),
    ]
    stream = bytearray(b"".join(draw(st.sampled_from(makers))() for _ in range(draw(st.integers(0, 12)))))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, max(0, len(stream) - 1)), st.integers(0, 255)), max_size=3)):
        stream[at : at + 1] = bytes((byte,))
    return bytes(stream)


def other(role: str) -> str:
    return "server" if role == "client" else "client"


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[one:other] for one, other in pairwise(edges)]


def fed(chunks: list[bytes]) -> tuple[list[Event | tuple[int, bytes]], bytes]:
    """Return the events and the answers of a connection for these bytes."""
    connection = Connection(SMALL)
    happened = [event for chunk in chunks for event in connection.receive_data(chunk)]
    return wire.joined(happened), connection.data_to_send()


@settings(max_examples=200, deadline=None)
@given(stream=wires(), cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_bytes_in_any_split_give_the_same_events_and_answers(stream: bytes, cuts: list[int]) -> None:
    whole = fed([stream])
    assert fed(split(stream, cuts)) == whole
    happened, answers = whole
    assert len(answers) <= SMALL.max_answers + 1000
    ends = [event for event in happened if isinstance(event, ConnectionTerminated)]
    assert ends == happened[len(happened) - len(ends) :]
    assert len(ends) <= 1


@settings(max_examples=100, deadline=None)
@given(chunks=st.lists(st.binary(max_size=100), max_size=10))
def test_random_bytes_never_raise(chunks: list[bytes]) -> None:
    connection = Connection(SMALL)
    for chunk in chunks:
        connection.receive_data(chunk)
    assert connection.queued <= SMALL.max_answers + 1000
    connection.receive_eof()
    assert connection.closed


@settings(max_examples=100, deadline=None)
@given(compressed=st.binary(max_size=200))
def test_any_compressed_block_opens_a_stream_refuses_it_or_ends_the_session(compressed: bytes) -> None:
    connection = Connection(SMALL)
    happened = connection.receive_data(wire.control(1, wire.words(1, 0) + b"\0\0" + wire.ZLIB_HEAD + compressed))
    if not happened:
        assert connection.data_to_send().endswith(wire.rst_stream(1, 1))
    else:
        assert isinstance(happened[0], StreamOpened | ConnectionTerminated)


class Conversation(RuleBasedStateMachine):
    """A client and a server perform any valid operations, and all sent bytes arrive, in any portions."""

    def __init__(self) -> None:
        super().__init__()
        self.client, self.server = ClientConnection(), Connection(SMALL)
        self.ends: dict[str, ClientConnection | Connection] = {"client": self.client, "server": self.server}
        self.wires = {role: bytearray() for role in ROLES}  # bytes in transit to this side
        self.known: dict[str, set[int]] = {role: set() for role in ROLES}
        self.sent: dict[tuple[str, int], bytes] = {}
        self.got: dict[tuple[str, int], bytes] = {}
        self.finished: dict[str, set[int]] = {role: set() for role in ROLES}  # reported
        self.reset: set[int] = set()
        self.unread: dict[tuple[str, int], int] = {}
        self.filler = 0

    @rule(fin=st.booleans())
    def open_stream(self, fin: bool) -> None:
        if len(self.client.open_streams | self.server_streams()) < SMALL.max_streams:
            self.known["client"].add(self.client.open_stream([("n", "1"), ("n", "2")], fin=fin))

    @rule(role=st.sampled_from(ROLES), size=st.integers(0, 5000), fin=st.booleans(), data=st.data())
    def send_data(self, role: str, size: int, fin: bool, data: st.DataObject) -> None:
        if not self.known[role]:
            return
        stream_id = data.draw(st.sampled_from(sorted(self.known[role])))
        self.filler += 1
        payload = bytes((self.filler % 256,)) * size
        try:
            payload = payload[: self.ends[role].send_window(stream_id)]
            self.ends[role].send_data(stream_id, payload, fin=fin)
        except NotAllowed:
            return
        self.sent[role, stream_id] = self.sent.get((role, stream_id), b"") + payload

    @rule(role=st.sampled_from(ROLES), data=st.data())
    def reset_stream(self, role: str, data: st.DataObject) -> None:
        if self.known[role]:
            stream_id = data.draw(st.sampled_from(sorted(self.known[role])))
            self.ends[role].reset(stream_id)
            self.reset.add(stream_id)

    @rule()
    def ping(self) -> None:
        self.client.ping()

    @rule(role=st.sampled_from(ROLES), data=st.data())
    def acknowledge(self, role: str, data: st.DataObject) -> None:
        waiting = sorted(key for key, count in self.unread.items() if count and key[0] == role)
        if waiting:
            key = data.draw(st.sampled_from(waiting))
            count = data.draw(st.integers(1, self.unread[key]))
            self.unread[key] -= count
            self.ends[role].acknowledge(key[1], count)

    @rule(role=st.sampled_from(ROLES), share=st.integers(1, 100))
    def carry(self, role: str, share: int) -> None:
        self.wires[role] += self.ends[other(role)].data_to_send()
        count = -(-len(self.wires[role]) * share // 100)
        chunk = bytes(self.wires[role][:count])
        del self.wires[role][:count]
        for event in self.ends[role].receive_data(chunk):
            self.hear(role, event)

    def hear(self, role: str, event: object) -> None:
        match event:
            case StreamOpened(stream_id, headers):
                assert headers == (("n", "1"), ("n", "2"))
                self.known[role].add(stream_id)
                with suppress(NotAllowed):  # the same bytes may reset the stream
                    self.server.reply(stream_id)
            case DataReceived(stream_id, data):
                key = (role, stream_id)
                self.got[key] = self.got.get(key, b"") + bytes(data)
                self.unread[key] = self.unread.get(key, 0) + len(data)
            case StreamHalfClosed(stream_id):
                assert stream_id not in self.finished[role]
                self.finished[role].add(stream_id)
            case StreamReset(stream_id, _, by_peer):
                assert by_peer  # this side found no error
                self.reset.add(stream_id)
            case ConnectionTerminated(_, reason):
                raise AssertionError(reason)
            case _:
                assert isinstance(event, StreamReplied | PingAcked | WindowOpened)

    @invariant()
    def what_arrived_is_the_beginning_of_what_was_sent(self) -> None:
        for (role, stream_id), got in self.got.items():
            assert self.sent[other(role), stream_id].startswith(got)

    @invariant()
    def neither_holds_more_than_a_session_window(self) -> None:
        for role in ROLES:
            assert sum(count for key, count in self.unread.items() if key[0] == role and key[1] not in self.reset) <= (
                SMALL.session_window
            )

    @precondition(lambda self: any(end.queued for end in self.ends.values()) or any(self.wires.values()))
    @rule()
    def settle(self) -> None:
        """Deliver and acknowledge all bytes in transit: then both sides have the same state."""
        while any(end.queued for end in self.ends.values()) or any(self.wires.values()):
            for role in ROLES:
                self.carry(role, 100)
                for (owner, stream_id), count in self.unread.items():
                    if owner == role:
                        self.ends[role].acknowledge(stream_id, count)
                        self.unread[owner, stream_id] = 0
        for (role, stream_id), sent in self.sent.items():
            assert stream_id in self.reset or self.got.get((other(role), stream_id), b"") == sent
        assert self.client.open_streams == self.server_streams()
        for role in ROLES:
            for stream_id in self.server_streams():
                assert self.room(role, stream_id) in (None, *range(SMALL.session_window // 2, SMALL.session_window + 1))

    def room(self, role: str, stream_id: int) -> int | None:
        try:
            return self.ends[role].send_window(stream_id)
        except NotAllowed:
            return None

    def server_streams(self) -> set[int]:
        return set(self.server._session.streams._streams)


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestConversation = Conversation.TestCase


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=20), chunk=st.integers(1, 500))
def test_a_long_transfer_passes_small_windows(sizes: list[int], chunk: int) -> None:
    sender, receiver = ClientConnection(), Connection(SMALL)
    stream_id = sender.open_stream([])
    payload = b"".join(bytes((n % 256,)) * size * 10 for n, size in enumerate(sizes))
    got, at, ended = bytearray(), 0, False
    while not ended:
        count = min(sender.send_window(stream_id), chunk * 100)
        part = payload[at : at + count]
        at += len(part)
        sender.send_data(stream_id, part, fin=bool(part) and at == len(payload))
        for event in receiver.receive_data(sender.data_to_send()):
            if isinstance(event, DataReceived):
                got += event.data
                receiver.acknowledge(stream_id, len(event.data))
            ended = isinstance(event, StreamHalfClosed)
        sender.receive_data(receiver.data_to_send())
    assert bytes(got) == payload
