"""Bounds on the memory of a session and on the delay of other threads, whatever a client sends."""

import array
import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from shim.domain.errors import Cancelled, ShimError
from shim.streaming import portforward, spdy
from shim.streaming.channel import Channel
from shim.streaming.remotecommand import wait_streams
from shim.streaming.session import Session
from shim.streaming.websocket import Channels, ChannelWire, TunnelWire
from shim.streaming.wire import Wire
from tests.streaming.client import SECONDS, session_of, task
from tests.streaming.spdy import wire
from tests.streaming.spdy.client import Deflater, counted, syn_stream
from tests.waits import wait_until

KIB, MIB = 1 << 10, 1 << 20

BAR = 4 * MIB
"""Memory that a session may add. Its bounds sum up to 2 MiB; the rest belongs to the allocator, the client and the test
in the same process."""

STALL = 2.0
"""Seconds that another thread may wait: much more than promised, since test machines are busy, and much less than a
decompression bomb takes."""


PATIENCE = 10
"""Consecutive checks, 10 ms apart, in which a session must not want data, until it counts as stopped."""


class Meter:
    """Measures the peak of added memory, and the longest delay of a thread."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        self._before = self._status("VmRSS")
        self._stop = threading.Event()
        self._longest = 0.0
        self._beat = threading.Thread(target=self._count)
        self._beat.start()

    def _status(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * KIB for line in lines if line.startswith(f"{name}:"))

    def _count(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.005):
            now = time.monotonic()
            self._longest, last = max(self._longest, now - last - 0.005), now

    def read(self) -> tuple[int, float]:
        """Return the bytes and the seconds."""
        self._stop.set()
        self._beat.join()
        return self._status("VmHWM") - self._before, self._longest


@contextmanager
def bounded(bar: int = BAR) -> Iterator[None]:
    """Check the memory and the delays of the block."""
    meter = Meter()
    try:
        yield
    finally:
        grown, stalled = meter.read()
    assert grown < bar, f"{grown / MIB:.1f} MiB more"
    assert stalled < STALL, f"another thread was held up for {stalled * 1000:.0f} ms"


def pushed(far: socket.socket, data: bytes, *, made: Wire, seconds: float = SECONDS) -> None:
    """Send until all bytes were processed, or the session stops reading or ends."""
    far.setblocking(False)
    view, until, refusing = memoryview(data), time.monotonic() + seconds, 0
    while (view or not quiet(far)) and time.monotonic() < until:
        try:
            view = view[far.send(view) :] if view else view
            refusing = 0
        except BlockingIOError:
            refusing = 0 if made.wants_data else refusing + 1
        except OSError:
            return
        if made.closed or refusing == PATIENCE:
            return
        if refusing or not view:
            time.sleep(0.01)  # there is no event for reads of the peer


def opening(*headers: dict[str, str], deflater: Deflater, first: int = 1) -> bytes:
    return b"".join(
        syn_stream(first + 2 * index, deflater.deflate(counted(each.items()))) for index, each in enumerate(headers)
    )


def header_bomb(deflater: Deflater, *, values: int, kind: int) -> bytes:
    raw = wire.block((b"aa", b"\0".join([b"ab"] * values)))
    return wire.control(kind, wire.words(1) + deflater.deflate(raw))


EXEC = tuple({"streamtype": kind} for kind in ("error", "stdout", "stderr"))


def quiet(far: socket.socket) -> bool:
    """Return whether the peer has read all sent bytes from the socket."""
    count = array.array("i", [0])
    fcntl.ioctl(far, termios.TIOCOUTQ, count)
    return count[0] == 0


def attacked(made: Wire, attack: bytes, *, serve: Callable[[Session], object] = lambda _: None) -> None:
    """Send `attack` to a session, read no answers, and check memory and delays."""
    with session_of(made) as (session, far):
        serving = threading.Thread(target=serve, args=(session,))
        serving.start()
        with bounded():
            pushed(far, attack, made=made)
        session.end("the test is over")
        serving.join(SECONDS)
        assert not serving.is_alive()


def exec_wire() -> spdy.Connection:
    return spdy.Connection(spdy.Limits(max_streams=3))


def forward_wire() -> spdy.Connection:
    return spdy.Connection(spdy.Limits(max_streams=portforward.MAX_STREAMS))


def take_streams(session: Session) -> None:
    """Serve an exec that neither reads nor writes."""
    with suppress(Cancelled):
        wait_streams(session, task(), protocol="v4.channel.k8s.io", seconds=SECONDS)


def refuse(port: int) -> socket.socket:
    raise ShimError(f"connect to port {port}: connection refused")


def forward(session: Session) -> None:
    with suppress(Cancelled):
        portforward.forward(session, dial=refuse, seconds=SECONDS)


@pytest.mark.parametrize("kind", [2, 8], ids=["SYN_REPLY", "HEADERS"])
@pytest.mark.parametrize("values", [10_900, 1_300], ids=["large", "as large as is taken"])
def test_header_blocks_that_inflate_to_much_more_than_their_size(kind: int, values: int) -> None:
    deflater = Deflater()
    attack = bytearray(opening(*EXEC, deflater=deflater))
    while len(attack) < 128 * KIB:
        attack += header_bomb(deflater, values=values, kind=kind)
    attacked(exec_wire(), bytes(attack), serve=take_streams)


def test_the_total_work_for_header_blocks_is_bounded() -> None:
    deflater = Deflater()
    attack = bytearray(opening(*EXEC, deflater=deflater))
    while len(attack) < 256 * KIB:
        attack += header_bomb(deflater, values=1_300, kind=8)
    connection = exec_wire()
    *_, last = connection.receive_data(bytes(attack))
    assert isinstance(last, spdy.ConnectionTerminated)
    assert "inflate to more than 64 times" in last.reason


def test_a_long_port_forward_does_not_reach_the_bound_on_header_blocks() -> None:
    deflater = Deflater()
    connection = forward_wire()
    for number in range(10_000):
        stream = 1 + 2 * number
        headers = {"streamtype": "error", "port": "8080", "requestid": str(number)}
        list(connection.receive_data(opening(headers, deflater=deflater, first=stream) + wire.rst_stream(stream, 5)))
    assert not connection.closed


def many_headers(count: int) -> dict[str, str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [one + two for one in letters for two in letters]
    return {"streamtype": "x", **dict.fromkeys(names[:count], "v")}


@pytest.mark.parametrize("made", [exec_wire, forward_wire])
@pytest.mark.parametrize("count", [60, 300])
def test_streams_with_many_headers_that_are_not_accepted(made: Callable[[], Wire], count: int) -> None:
    deflater = Deflater()
    attack = opening(*EXEC, *[many_headers(count)] * 1000, deflater=deflater)
    attacked(made(), attack, serve=take_streams)


def test_streams_beyond_those_of_the_task_are_refused() -> None:
    with session_of(spdy.Connection()) as (session, far):
        deflater = Deflater()
        far.sendall(opening(*EXEC, deflater=deflater))
        take_streams(session)
        far.sendall(opening(*[{"streamtype": "late"}] * 3, deflater=deflater, first=7))
        answers = b""
        while wire.rst_stream(11, spdy.ResetStatus.REFUSED_STREAM) not in answers:
            answers += far.recv(1000)
        assert session.next_channel(seconds=0) is None


def test_resets_for_a_client_that_does_not_read() -> None:
    deflater = Deflater()
    wrong = [{"streamtype": "error", "port": "0", "requestid": "1"}] * 30_000
    attacked(forward_wire(), opening(*wrong, deflater=deflater), serve=forward)


def test_a_client_that_opens_and_resets_streams_and_does_not_read() -> None:
    deflater = Deflater()
    attack = bytearray()
    for stream in range(1, 40_001, 2):
        headers = {"streamtype": "error", "port": "80", "requestid": str(stream)}
        attack += opening(headers, deflater=deflater, first=stream) + wire.rst_stream(stream, 5)
    attacked(forward_wire(), bytes(attack), serve=forward)


FLOODS = {
    "pings": wire.ping(1),
    "settings": wire.settings(initial_window_size=65536),
    "many settings": wire.control(4, wire.words(2000, *(word for one in range(2000) for word in (one, 1)))),
    "resets of no stream": wire.rst_stream(99, 5),
    "window updates": wire.window_update(1, 0) + wire.window_update(99, 1),
    "data of no stream": wire.data(99),
    "data of a stream of the server": wire.data(2, b"x"),
    "data without payload": wire.data(3),
    "tiny data that nothing reads": wire.data(3, b"x"),
    "data that nothing reads": wire.data(3, bytes(1500)),
    "data after fin": wire.data(1, b"x", flags=wire.FIN),
    "unknown frames": wire.control(77, bytes(100)),
    "goaways": wire.goaway(0, 0),
}


@pytest.mark.parametrize("name", FLOODS)
@pytest.mark.parametrize("tunnelled", [False, True], ids=["spdy", "spdy in websocket"])
def test_floods_of_frames(name: str, tunnelled: bool) -> None:
    attack = opening(*EXEC, deflater=Deflater()) + FLOODS[name] * (MIB // 2 // len(FLOODS[name]))
    if tunnelled:
        limits = spdy.Limits(max_streams=3)
        attack = b"".join(masked(attack[at : at + 999]) for at in range(0, len(attack), 999))
        attacked(TunnelWire(limits), attack, serve=take_streams)
    else:
        attacked(exec_wire(), attack, serve=take_streams)


def test_a_read_keeps_no_more_memory_than_the_window_counts() -> None:
    attack = bytearray(opening(*[{"streamtype": "data"}] * 2, deflater=Deflater()))
    for _ in range(690):
        attack += wire.data(1, bytes(64_020)) + wire.data(3, bytes(1_500))

    def serve(session: Session) -> None:
        with suppress(Cancelled):
            for _ in range(2):
                channel = session.next_channel()
                assert channel is not None
                if channel.id == 1:
                    channel.abandon()

    attacked(spdy.Connection(), bytes(attack), serve=serve)


def masked(payload: bytes, *, opcode: int = 2, fin: bool = True) -> bytes:
    """Return a frame of a WebSocket client with a zero mask."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + struct.pack("!H", size)
    return bytes((0x80 * fin | opcode,)) + length + bytes(4) + payload


def channel_wire() -> ChannelWire:
    return ChannelWire(
        Channels(
            headers={number: ((("streamtype"), kind),) for number, kind in enumerate(("stdin", "stdout", "error"))}
        )
    )


HUGE = b"\x82\xff" + struct.pack("!Q", (1 << 63) - 1) + bytes(4)
WEBSOCKET_FLOODS = {
    "tiny messages that nothing reads": masked(b"\0x") * (MIB // 16),
    "messages that nothing reads": masked(bytes(1500)) * 2800,
    "empty messages": masked(b"") * (MIB // 16),
    "pings": masked(b"", opcode=9) * (MIB // 16),
    "long pings": masked(bytes(125), opcode=9) * (4 * MIB // 131),
    "pongs": masked(bytes(125), opcode=10) * (4 * MIB // 131),
    "one message of tiny parts": masked(b"\0x", fin=False) + masked(b"x", opcode=0, fin=False) * (MIB // 16),
    "one message of empty parts": masked(b"\0x", fin=False) + masked(b"", opcode=0, fin=False) * (MIB // 16),
    "a frame without end": HUGE + bytes(4 * MIB),
    "channels that are not there": masked(b"\x63" + bytes(1500)) * 2800,
    "a close with junk, and more": masked(b"\xff\xff" + bytes(120), opcode=8) + masked(b"\0x") * (MIB // 16),
    "a fragmented ping": masked(b"", opcode=9, fin=False) * 1000,
    "text that is not UTF-8": masked(b"\xff" * 100, opcode=1) * 1000,
}


@pytest.mark.parametrize("name", WEBSOCKET_FLOODS)
@pytest.mark.parametrize("made", [channel_wire, TunnelWire], ids=["channels", "spdy in websocket"])
def test_floods_of_websocket_frames(name: str, made: Callable[[], Wire]) -> None:
    attacked(made(), WEBSOCKET_FLOODS[name])


@pytest.mark.parametrize("towards_pod", [True, False], ids=["a pod that does not read", "a client that does not read"])
def test_the_maximum_number_of_port_forward_connections(towards_pod: bool) -> None:
    """Threads, their buffers and queued bytes together stay within the bounds."""
    ends: list[socket.socket] = []
    threads = threading.active_count()

    def dial(_port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        ends.append(theirs)
        return ours

    def serve(session: Session) -> None:
        with suppress(Cancelled):
            portforward.forward(session, dial=dial, seconds=SECONDS)

    deflater, count = Deflater(), portforward.MAX_CONNECTIONS
    attack = bytearray()
    for number in range(count):
        pair = {"port": "80", "requestid": str(number)}
        kinds = ({"streamtype": kind, **pair} for kind in ("error", "data"))
        attack += opening(*kinds, deflater=deflater, first=1 + 4 * number)
    junk = bytes(64 * KIB)
    upward = b"".join(wire.data(3 + 4 * number, junk) for number in range(count)) * 2
    made = forward_wire()
    with session_of(made) as (session, far):
        serving = threading.Thread(target=serve, args=(session,))
        serving.start()
        with bounded():
            far.sendall(attack)
            wait_until(lambda: len(ends) == count)
            if towards_pod:
                pushed(far, upward, made=made)
            else:
                for end in ends:
                    with suppress(BlockingIOError):
                        while True:
                            end.send(junk)
                time.sleep(0.5)  # until the server has stopped reading
            wait_until(lambda: threading.active_count() <= threads + 4)
        session.end("the test is over")
        serving.join(SECONDS)
        assert not serving.is_alive()
    for end in ends:
        end.close()


def test_a_channel_keeps_only_the_headers_that_tasks_use() -> None:
    with session_of(spdy.Connection()) as (session, far):
        headers = {"streamtype": "data", "other": "x", "requestid": "9" * 65}
        far.sendall(opening(headers, deflater=Deflater()))
        channel = session.next_channel(seconds=SECONDS)
        assert isinstance(channel, Channel)
        assert [channel.header(name) for name in headers] == ["data", "", ""]
