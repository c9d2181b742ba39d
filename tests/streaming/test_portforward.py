import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from shim.base.process import ProcessHandle
from shim.domain.errors import Cancelled, ShimError
from shim.streaming import portforward, spdy
from shim.streaming.pipe import Pipe
from shim.streaming.session import Session
from shim.streaming.spdy import frames
from shim.streaming.websocket import Channels, ChannelWire
from tests.streaming.client import SECONDS, SpdyClient, WebSocketClient, session_of
from tests.threads import no_thread_for
from tests.waits import wait_until


class Pod:
    """A pod whose connections are socket pairs."""

    def __init__(self) -> None:
        self.ends: dict[int, socket.socket] = {}
        self._dialled = threading.Condition()

    def dial(self, port: int) -> socket.socket:
        if port == 1:
            raise ShimError("connect to port 1: connection refused")
        ours, theirs = socket.socketpair()
        theirs.settimeout(SECONDS)
        with self._dialled:
            self.ends[port] = theirs
            self._dialled.notify_all()
        return ours

    def dialled(self, port: int) -> socket.socket:
        """Wait until a port was dialled, and return the pod's end of the connection."""
        with self._dialled:
            assert self._dialled.wait_for(lambda: port in self.ends, SECONDS)
        return self.ends[port]

    def close(self) -> None:
        for end in self.ends.values():
            end.close()


@contextmanager
def forwarding(
    seconds: float = SECONDS, pause: ProcessHandle | None = None
) -> Iterator[tuple[SpdyClient, Pod, Callable[[], None]]]:
    pod = Pod()
    with session_of(spdy.Connection()) as (session, far):

        def serve() -> None:
            with suppress(Cancelled):
                portforward.forward(session, dial=pod.dial, seconds=seconds, pause=pause)

        serving = threading.Thread(target=serve)
        serving.start()

        def leave() -> None:
            far.close()
            serving.join(SECONDS)
            assert not serving.is_alive()

        yield SpdyClient(far), pod, leave
        leave()
    pod.close()


@contextmanager
def forwarding_until_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[SpdyClient, Pod, "subprocess.Popen[bytes]"]]:
    """Forward to a pod whose pause process a test can kill."""
    monkeypatch.setattr(portforward, "ENDED_SECONDS", 0.1)
    with (
        subprocess.Popen(["sleep", "1000"]) as process,
        ProcessHandle(process.pid) as pause,
        forwarding(pause=pause) as (client, pod, _),
    ):
        yield client, pod, process


def pair(client: SpdyClient, port: int, request: int = 0) -> tuple[int, int]:
    error = client.open(streamtype="error", port=str(port), requestid=str(request))
    return client.open(streamtype="data", port=str(port), requestid=str(request)), error


def test_bytes_flow_in_both_directions_which_end_separately() -> None:
    with forwarding() as (client, pod, _):
        data, error = pair(client, 80)
        client.send(data, b"question", fin=True)
        end = pod.dialled(80)
        got = b""
        while piece := end.recv(100):
            got += piece
        assert got == b"question"
        end.sendall(b"answer")
        end.close()
        client.read_until_ended(data, error)

        assert client.received == {data: b"answer"}


def test_the_client_may_send_after_the_pod_has_closed_its_side() -> None:
    with forwarding() as (client, pod, _):
        data, error = pair(client, 80)
        pod.dialled(80).sendall(b"banner")
        pod.dialled(80).shutdown(socket.SHUT_WR)
        client.read_until_ended(data, error)
        client.send(data, b"late", fin=True)

        assert client.received == {data: b"banner"}
        assert pod.dialled(80).recv(100) == b"late"


def test_a_refused_port_gives_the_reason_and_does_not_affect_others() -> None:
    with forwarding() as (client, pod, _):
        good, _ = pair(client, 80, request=0)
        bad, why = pair(client, 1, request=1)
        client.read_until_ended(bad, why)
        assert client.received == {why: b"connect to port 1: connection refused"}
        pod.dialled(80).sendall(b"alive")
        pod.dialled(80).close()
        client.read_until_ended(good)

        assert client.received[good] == b"alive"


def test_no_free_thread_fails_a_connection_and_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with forwarding() as (client, pod, _):
        with monkeypatch.context() as short:
            no_thread_for("port-forward", short)
            bad, why = pair(client, 80, request=0)
            client.read_until_ended(bad, why)
        assert client.received[why]
        good, _ = pair(client, 81, request=1)
        pod.dialled(81).sendall(b"alive")
        pod.dialled(81).close()
        client.read_until_ended(good)

        assert client.received[good] == b"alive"


def test_the_error_stream_may_be_opened_second() -> None:
    with forwarding() as (client, pod, _):
        data = client.open(streamtype="data", port="80", requestid="7")
        client.open(streamtype="error", port="80", requestid="7")
        client.send(data, b"x")

        assert pod.dialled(80).recv(1) == b"x"


@pytest.mark.parametrize(
    "headers",
    [
        {"streamtype": "other", "port": "80", "requestid": "0"},
        {"streamtype": "data", "port": "0", "requestid": "0"},
        {"streamtype": "data", "port": "65536", "requestid": "0"},
        {"streamtype": "data", "port": "-1", "requestid": "0"},
        {"streamtype": "data", "port": "http", "requestid": "0"},
        {"streamtype": "data", "port": "80"},
    ],
    ids=["type", "zero", "too high", "negative", "name", "no request"],
)
def test_a_stream_with_invalid_headers_is_reset(headers: dict[str, str]) -> None:
    with forwarding() as (client, _pod, _):
        wrong = client.open(**headers)
        client.read_until_ended(wrong)

        assert client.reset == {wrong}


def test_two_streams_that_are_not_a_pair_are_reset() -> None:
    with forwarding() as (client, pod, _):
        one = client.open(streamtype="data", port="80", requestid="0")
        two = client.open(streamtype="error", port="81", requestid="0")
        client.read_until_ended(one, two)

        assert client.reset == {one, two}
        assert not pod.ends


def test_an_incomplete_pair_is_reset_after_the_timeout() -> None:
    with forwarding(seconds=0.1) as (client, _pod, _):
        lonely = client.open(streamtype="data", port="80", requestid="0")
        client.read_until_ended(lonely)

        assert client.reset == {lonely}


def test_a_disconnect_of_the_client_closes_all_connections() -> None:
    with forwarding() as (client, pod, leave):
        for request, port in enumerate((80, 81, 82)):
            data, _ = pair(client, port, request=request)
            client.send(data, b"x")
            assert pod.dialled(port).recv(1) == b"x"
        leave()

        assert [end.recv(1) for end in pod.ends.values()] == [b"", b"", b""]


@pytest.mark.parametrize("reads", [True, False])
def test_connections_end_after_their_pod_whether_the_client_reads_or_not(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forwarding_until_killed(monkeypatch) as (client, pod, process):
        pair(client, 80)
        far = pod.dialled(80)
        if not reads:
            far.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    far.send(bytes(65536))
            far.settimeout(SECONDS)
        process.kill()

        assert ended(far)


def ended(far: socket.socket) -> bool:
    """Wait for the end of the connection; it may be a reset, since not all bytes were read."""
    try:
        return far.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_that_the_client_does_not_read_does_not_delay_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with forwarding() as (client, pod, _):
        pair(client, 80, request=0)
        stalled = pod.dialled(80)
        stalled.setblocking(False)
        data, _ = pair(client, 81, request=1)
        other = pod.dialled(81)
        # The client acknowledges no bytes of the first stream.
        client.socket.sendall(frames.window_update_bytes(0, 1 << 20))
        monkeypatch.setattr(client.connection, "acknowledge", lambda _stream, _count: None)
        with suppress(BlockingIOError):
            while True:
                stalled.send(bytes(65536))
        other.sendall(b"answer")
        while bytes(client.received.get(data, b"")) != b"answer":
            client.read_some()


def test_a_reason_that_the_client_does_not_take_delays_no_other_connection() -> None:
    with forwarding() as (client, pod, _):
        data, _ = pair(client, 80, request=0)
        client.socket.sendall(frames.settings_bytes([(frames.Setting.INITIAL_WINDOW_SIZE, 0)]))
        refused, why = pair(client, 1, request=1)
        client.socket.sendall(frames.window_update_bytes(data, 1 << 20))
        client.ping()
        threading.Event().wait(0.1)  # for the dial
        pod.dialled(80).sendall(b"answer")
        while bytes(client.received.get(data, b"")) != b"answer":
            client.read_some()
        client.socket.sendall(frames.window_update_bytes(why, 10))
        client.ping()
        client.socket.sendall(frames.window_update_bytes(why, 1 << 20))
        client.read_until_ended(refused, why)

        assert client.received[why] == b"connect to port 1: connection refused"


def test_connections_end_after_their_pod_while_the_client_takes_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with forwarding_until_killed(monkeypatch) as (client, pod, process):
        pair(client, 80)
        far = pod.dialled(80)
        client.socket.sendall(frames.settings_bytes([(frames.Setting.INITIAL_WINDOW_SIZE, 0)]))
        pair(client, 1, request=1)
        client.ping()
        threading.Event().wait(0.1)  # for the dial
        process.kill()

        assert ended(far)


@contextmanager
def forwarding_over_channels(*ports: int) -> Iterator[tuple[WebSocketClient, Pod]]:
    pod = Pod()
    channels = Channels(
        headers=portforward.channel_headers(ports),
        greetings=portforward.channel_greetings(ports),
    )
    with session_of(ChannelWire(channels)) as (session, far):

        def serve() -> None:
            with suppress(Cancelled):
                portforward.forward(session, dial=pod.dial, seconds=SECONDS)
            session.finish()

        serving = threading.Thread(target=serve)
        serving.start()
        yield WebSocketClient(far), pod
        far.close()
        serving.join(SECONDS)
        assert not serving.is_alive()
    pod.close()


def test_a_channel_session_ends_when_the_pod_closes_the_connection() -> None:
    with forwarding_over_channels(80) as (client, pod):
        client.send(b"\0question")
        assert pod.dialled(80).recv(100) == b"question"
        pod.dialled(80).sendall(b"answer")
        pod.dialled(80).close()
        client.read_to_end()

        assert client.messages[2:] == [b"\0answer"]
        assert client.code == 1000


def test_a_channel_session_ends_with_the_last_of_its_ports() -> None:
    with forwarding_over_channels(80, 81) as (client, pod):
        pod.dialled(80).close()
        client.send(b"\x02still")
        assert pod.dialled(81).recv(100) == b"still"
        pod.dialled(81).close()
        client.read_to_end()

        assert client.code == 1000


def test_a_channel_session_does_not_end_before_its_channels_are_open() -> None:
    pod = Pod()
    near, far = socket.socketpair()
    channels = Channels(headers=portforward.channel_headers((80,)))
    session = Session(Pipe(near), ChannelWire(channels), idle_timeout=0)

    def serve() -> None:
        with suppress(Cancelled):
            portforward.forward(session, dial=pod.dial, seconds=SECONDS)

    serving = threading.Thread(target=serve)
    loop = threading.Thread(target=session.run)
    with far:
        serving.start()
        serving.join(0.2)
        assert serving.is_alive()
        loop.start()
        pod.dialled(80).close()
        serving.join(SECONDS)
        assert not serving.is_alive()
        session.end("the test is over")
        loop.join(SECONDS)


def test_a_channel_session_ends_when_its_port_refuses() -> None:
    with forwarding_over_channels(1) as (client, _pod):
        client.read_to_end()

        assert client.messages[2:] == [b"\x01connect to port 1: connection refused"]
        assert client.code == 1000


def test_input_for_a_channel_whose_connection_has_ended_is_dropped() -> None:
    with forwarding_over_channels(80, 81) as (client, pod):
        pod.dialled(80).close()
        for _ in range(40):  # more than the bound for all channels
            client.send(b"\0" + bytes(64 * 1024))
        client.send(b"\x02through")

        assert pod.dialled(81).recv(100) == b"through"


def test_a_reset_by_the_pod_ends_only_its_connection() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, session_of(spdy.Connection()) as (session, far):

        def serve() -> None:
            with suppress(Cancelled):
                portforward.forward(session, dial=lambda _: socket.create_connection(listener.getsockname()), seconds=9)

        serving = threading.Thread(target=serve)
        serving.start()
        client = SpdyClient(far)
        data, error = pair(client, 80)
        pod, _ = listener.accept()
        client.send(data, b"x")
        assert pod.recv(1) == b"x"
        pod.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pod.close()
        client.read_until_ended(data, error)
        assert b"reset" in client.received[error]
        other, _ = pair(client, 80, request=1)
        pod, _ = listener.accept()
        client.send(other, b"y")
        assert pod.recv(1) == b"y"
        pod.close()
        far.close()
        serving.join(SECONDS)
        assert not serving.is_alive()


def test_slow_dials_do_not_delay_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portforward, "MAX_DIALS", 2)
    made, go = threading.Semaphore(0), threading.Event()
    ends: list[socket.socket] = []

    def dial(_port: int) -> socket.socket:
        made.release()
        go.wait(SECONDS)
        ours, theirs = socket.socketpair()
        ends.append(theirs)
        return ours

    with session_of(spdy.Connection()) as (session, far):

        def serve() -> None:
            with suppress(Cancelled):
                portforward.forward(session, dial=dial, seconds=SECONDS)

        serving = threading.Thread(target=serve)
        serving.start()
        client = SpdyClient(far)
        streams = [pair(client, 80, request=number)[0] for number in range(5)]
        client.ping()
        assert [made.acquire(timeout=SECONDS), made.acquire(timeout=SECONDS), made.acquire(timeout=0.1)] == [
            True,
            True,
            False,
        ]
        go.set()
        for stream in streams:
            client.send(stream, b"x")
        wait_until(lambda: len(ends) == 5)
        assert [end.recv(1) for end in ends] == [b"x"] * 5
        far.close()
        serving.join(SECONDS)
    for end in ends:
        assert end.recv(1) == b""
        end.close()


def test_each_port_has_two_websocket_channels() -> None:
    headers = portforward.channel_headers((80, 8080))

    assert [dict(headers[number])["streamtype"] for number in range(4)] == ["data", "error", "data", "error"]
    assert [dict(headers[number])["port"] for number in range(4)] == ["80", "80", "8080", "8080"]
    assert portforward.channel_greetings((80, 8080)) == {0: b"P\0", 1: b"P\0", 2: b"\x90\x1f", 3: b"\x90\x1f"}


def takes(peer: socket.socket, data: bytes) -> bool:
    """Send, and return whether the peer is still connected."""
    try:
        peer.sendall(data)
    except BrokenPipeError:
        return False
    return True


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "while its input is not read"])
def test_a_reset_by_the_client_ends_only_its_connection(busy: bool) -> None:
    with forwarding() as (client, pod, _):
        data, _ = pair(client, 80, request=0)
        other, _ = pair(client, 81, request=1)
        client.send(data, b"x")
        assert pod.dialled(80).recv(1) == b"x"
        if busy:
            fill_upward(client, data)
        client.connection.reset(data)
        client.flush()
        while pod.dialled(80).recv(65536):
            pass
        wait_until(lambda: not takes(pod.dialled(80), b"into nothing"))  # the directions end one after another
        client.send(other, b"y")

        assert pod.dialled(81).recv(1) == b"y"


def fill_upward(client: SpdyClient, stream: int) -> None:
    """Send until the window and the socket of the pod, which does not read, are full."""
    while client.connection.send_window(stream):
        client.send(stream, bytes(min(65536, client.connection.send_window(stream))))
        client.ping()


def test_a_reset_stream_of_an_incomplete_pair_is_forgotten() -> None:
    with forwarding() as (client, pod, _):
        client.connection.reset(client.open(streamtype="data", port="80", requestid="0"))
        client.flush()
        data, _ = pair(client, 80)
        client.send(data, b"x")

        assert pod.dialled(80).recv(1) == b"x"


def test_connections_beyond_the_limit_are_reset_until_another_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portforward, "MAX_CONNECTIONS", 1)
    with forwarding() as (client, pod, _):
        first = pair(client, 80, request=0)
        client.send(first[0], b"x")
        assert pod.dialled(80).recv(1) == b"x"
        refused = pair(client, 81, request=1)
        client.read_until_ended(*refused)
        assert client.reset == set(refused)
        client.send(first[0], fin=True)
        pod.dialled(80).close()
        client.read_until_ended(*first)
        third, _ = pair(client, 82, request=2)
        client.send(third, b"z")

        assert pod.dialled(82).recv(1) == b"z"
