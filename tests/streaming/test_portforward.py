import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from shim.errors import Cancelled, ShimError
from shim.streaming import portforward, spdy
from tests.streaming.client import SECONDS, SpdyClient, session_of
from tests.threads import no_thread_for


class Pod:
    """What listens in a pod: each connection is one end of a pair."""

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
        """Wait until a port was dialled, and give what listens there."""
        with self._dialled:
            assert self._dialled.wait_for(lambda: port in self.ends, SECONDS)
        return self.ends[port]

    def close(self) -> None:
        for end in self.ends.values():
            end.close()


@contextmanager
def forwarding(seconds: float = SECONDS) -> Iterator[tuple[SpdyClient, Pod, Callable[[], None]]]:
    pod = Pod()
    with session_of(spdy.Connection()) as (session, far):

        def serve() -> None:
            with suppress(Cancelled):
                portforward.forward(session, dial=pod.dial, seconds=seconds)

        serving = threading.Thread(target=serve)
        serving.start()

        def leave() -> None:
            far.close()
            serving.join(SECONDS)
            assert not serving.is_alive()

        yield SpdyClient(far), pod, leave
        leave()
    pod.close()


def pair(client: SpdyClient, port: int, request: int = 0) -> tuple[int, int]:
    error = client.open(streamtype="error", port=str(port), requestid=str(request))
    return client.open(streamtype="data", port=str(port), requestid=str(request)), error


def test_bytes_go_both_ways_and_each_ends_alone() -> None:
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


def test_a_pod_that_has_said_all_ends_both_streams_and_is_still_spoken_to() -> None:
    with forwarding() as (client, pod, _):
        data, error = pair(client, 80)
        pod.dialled(80).sendall(b"banner")
        pod.dialled(80).shutdown(socket.SHUT_WR)
        client.read_until_ended(data, error)
        client.send(data, b"late", fin=True)

        assert client.received == {data: b"banner"}
        assert pod.dialled(80).recv(100) == b"late"


def test_a_refused_port_tells_why_and_leaves_the_others() -> None:
    with forwarding() as (client, pod, _):
        good, _ = pair(client, 80, request=0)
        bad, why = pair(client, 1, request=1)
        client.read_until_ended(bad, why)
        assert client.received == {why: b"connect to port 1: connection refused"}
        pod.dialled(80).sendall(b"alive")
        pod.dialled(80).close()
        client.read_until_ended(good)

        assert client.received[good] == b"alive"


def test_no_thread_for_a_connection_is_told_and_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_error_stream_may_come_second() -> None:
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
def test_a_stream_that_makes_no_sense_is_reset(headers: dict[str, str]) -> None:
    with forwarding() as (client, _pod, _):
        wrong = client.open(**headers)
        client.read_until_ended(wrong)

        assert client.reset == {wrong}


def test_two_streams_that_do_not_fit_are_reset() -> None:
    with forwarding() as (client, pod, _):
        one = client.open(streamtype="data", port="80", requestid="0")
        two = client.open(streamtype="error", port="81", requestid="0")
        client.read_until_ended(one, two)

        assert client.reset == {one, two}
        assert not pod.ends


def test_half_of_a_pair_is_dropped_after_a_while() -> None:
    with forwarding(seconds=0.1) as (client, _pod, _):
        lonely = client.open(streamtype="data", port="80", requestid="0")
        client.read_until_ended(lonely)

        assert client.reset == {lonely}


def test_a_client_that_vanishes_closes_every_connection() -> None:
    with forwarding() as (client, pod, leave):
        for request, port in enumerate((80, 81, 82)):
            data, _ = pair(client, port, request=request)
            client.send(data, b"x")
            assert pod.dialled(port).recv(1) == b"x"
        leave()

        assert [end.recv(1) for end in pod.ends.values()] == [b"", b"", b""]


def test_websocket_channels_come_in_pairs() -> None:
    headers = portforward.channel_headers((80, 8080))

    assert [dict(headers[number])["streamtype"] for number in range(4)] == ["data", "error", "data", "error"]
    assert [dict(headers[number])["port"] for number in range(4)] == ["80", "80", "8080", "8080"]
    assert portforward.channel_greetings((80, 8080)) == {0: b"P\0", 1: b"P\0", 2: b"\x90\x1f", 3: b"\x90\x1f"}


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "while its input is not read"])
def test_a_client_that_resets_a_connection_cuts_it_and_no_other(busy: bool) -> None:
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
        with pytest.raises(BrokenPipeError):
            pod.dialled(80).sendall(b"into nothing")
        client.send(other, b"y")

        assert pod.dialled(81).recv(1) == b"y"


def fill_upward(client: SpdyClient, stream: int) -> None:
    """Send until the pod, which does not read, and the window are full."""
    while client.connection.send_window(stream):
        client.send(stream, bytes(min(65536, client.connection.send_window(stream))))
        client.ping()


def test_half_of_a_pair_that_was_reset_is_forgotten() -> None:
    with forwarding() as (client, pod, _):
        client.connection.reset(client.open(streamtype="data", port="80", requestid="0"))
        client.flush()
        data, _ = pair(client, 80)
        client.send(data, b"x")

        assert pod.dialled(80).recv(1) == b"x"


def test_connections_beyond_the_limit_are_reset_until_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
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
