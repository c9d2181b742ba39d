import errno
import os
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection

from shim.base import meter
from shim.config.model import Config
from shim.domain.ids import SandboxId
from shim.streaming import admission
from shim.streaming import server as server_module
from shim.streaming.listener import listen
from shim.streaming.remotecommand import wait_streams
from shim.streaming.server import StreamServer
from shim.streaming.session import Session
from shim.streaming.tokens import PortForwardTask, RemoteTask, Task, Tokens
from tests.streaming.client import SECONDS, SpdyClient, WebSocketClient, seconds_of_trickle, task
from tests.threads import no_thread_for
from tests.waits import wait_until

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
V4 = "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
SPDY = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
WEBSOCKET = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"


@dataclass
class Running:
    server: StreamServer
    url: str
    tokens: Tokens
    served: list[str]

    @property
    def netloc(self) -> str:
        return urlsplit(self.url).netloc

    def connect(self) -> socket.socket:
        where = urlsplit(self.url)
        return socket.create_connection((where.hostname or "", where.port or 0), timeout=SECONDS)

    def ask(self, path: str, headers: str, *, method: str = "POST", host: str = "") -> tuple[bytes, socket.socket]:
        """Send a request; return the head of the response and the connection."""
        connected = self.connect()
        connected.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host or self.netloc}\r\n{headers}\r\n".encode())
        return read_head(connected), connected

    def path(self, for_: Task | None = None) -> str:
        return urlsplit(self.tokens.url_of(for_ or task())).path


def read_head(connected: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and (byte := connected.recv(1)):
        answer += byte
    return answer


@contextmanager
def serving(
    config: Config, *, max_sessions: int = 512, max_sessions_each: int = 64, until: threading.Event | None = None
) -> Iterator[Running]:
    """Run a server whose sessions wait for `until` before they accept their streams."""
    listener = listen(config)
    tokens = Tokens(base_url=listener.base_url)
    served: list[str] = []

    def serve(task: Task, session: Session, protocol: str) -> None:
        served.append(protocol)
        if until is not None:
            assert until.wait(SECONDS)
        if isinstance(task, RemoteTask):
            streams = wait_streams(session, task, protocol=protocol, seconds=SECONDS)
            assert streams.stdout is not None
            streams.stdout.write(b"hello")
            streams.stdout.finish()
            streams.error.finish()
        else:
            session.next_channel()

    server = StreamServer(
        listener,
        tokens=tokens,
        serve=serve,
        idle_timeout=0,
        max_sessions=max_sessions,
        max_sessions_each=max_sessions_each,
    )
    server.start()
    try:
        yield Running(server, listener.base_url, tokens, served)
    finally:
        assert server.stop(grace=SECONDS)


@pytest.fixture
def running() -> Iterator[Running]:
    with serving(Config()) as made:
        yield made


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_a_session_over_spdy_is_served(running: Running) -> None:
    answer, connected = running.ask(running.path(), SPDY + V4)
    assert status(answer) == 101
    with connected:
        client = SpdyClient(connected)
        opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
        client.read_to_end()

    assert client.received == {opened["stdout"]: b"hello"}
    assert running.served == ["v4.channel.k8s.io"]


def test_a_session_over_websocket_is_served(running: Running) -> None:
    headers = WEBSOCKET + "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
    answer, connected = running.ask(running.path(), headers, method="GET")
    assert status(answer) == 101
    with connected:
        client = WebSocketClient(connected)
        client.read_to_end()

    assert client.messages == [b"\x01", b"\x01hello"]
    assert client.code == 1000


@pytest.mark.parametrize(
    ("kind", "protocol", "first"),
    [
        ("exec", "v4.base64.channel.k8s.io", b"1"),
        ("exec", "", b"\x01"),
        ("portforward", "v4.channel.k8s.io", b"\x00\x50\x00"),
        ("portforward", "SPDY/3.1+portforward.k8s.io", None),
    ],
)
def test_every_websocket_protocol_is_opened(running: Running, kind: str, protocol: str, first: bytes | None) -> None:
    asked = None if kind == "exec" else PortForwardTask(sandbox_id=SandboxId("s"), ports=(80,))
    headers = WEBSOCKET + (f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else "")
    answer, connected = running.ask(running.path(asked), headers, method="GET")
    with connected:
        assert status(answer) == 101
        if first is not None:
            client = WebSocketClient(connected)
            got = client.read_messages(1)[0]
            assert (got.encode() if isinstance(got, str) else got) == first


def test_a_token_works_once_and_only_for_its_kind(running: Running) -> None:
    path = running.path()
    wrong, connected = running.ask(path.replace("/exec/", "/attach/"), SPDY + V4)
    connected.close()
    first, connected = running.ask(path, SPDY + V4)
    connected.close()
    again, connected = running.ask(path, SPDY + V4)
    connected.close()

    assert [status(answer) for answer in (wrong, first, again)] == [404, 101, 404]


def test_a_refused_protocol_does_not_use_up_the_token(running: Running) -> None:
    path = running.path()
    refused, connected = running.ask(path, SPDY + "X-Stream-Protocol-Version: v9\r\n")
    connected.close()
    taken, connected = running.ask(path, SPDY + V4)
    connected.close()

    assert (status(refused), status(taken)) == (403, 101)
    assert b"X-Accepted-Stream-Protocol-Versions: v4.channel.k8s.io" in refused


@pytest.mark.parametrize("path", ["/", "/exec", "/exec/", "/exec/guess", "/exec/guess/more", "//", "*", "/metrics"])
def test_other_paths_are_not_found(running: Running, path: str) -> None:
    answer, connected = running.ask(path, SPDY + V4)
    connected.close()

    assert status(answer) == 404


@pytest.mark.parametrize(
    ("headers", "host", "code"),
    [
        (SPDY + V4 + "Origin: http://evil.example\r\n", "", 403),
        (SPDY + V4, "evil.example", 403),
        (SPDY + V4 + "X-Forwarded-For: 10.0.0.1\r\n", "api.example", 101),
        ("", "", 426),
        ("Content-Length: 3\r\n\r\nabc", "", 413),
        ("Host: twice\r\n", "", 400),
    ],
    ids=["page", "rebound name", "behind the kubelet", "no upgrade", "body", "two hosts"],
)
def test_requests_for_other_hosts_or_of_web_pages_are_refused(
    running: Running, headers: str, host: str, code: int
) -> None:
    answer, connected = running.ask(running.path(), headers, host=host)
    connected.close()

    assert status(answer) == code


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n" * 10 + b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_garbage_is_refused_and_the_server_continues(running: Running, data: bytes) -> None:
    with running.connect() as connected:
        connected.sendall(data)
        connected.shutdown(socket.SHUT_WR)
        assert 400 <= status(read_head(connected)) <= 505

    answer, connected = running.ask(running.path(), SPDY + V4)
    connected.close()
    assert status(answer) == 101


def test_a_request_that_is_not_sent_in_time_is_refused(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.2)
    with running.connect() as connected:
        connected.sendall(b"POST /exec/")

        assert status(read_head(connected)) == 408


def test_silent_connections_do_not_block_clients(running: Running) -> None:
    with ExitStack() as open_ones, capture_logs() as lines, refused_by_reason() as counted:
        silent = [open_ones.enter_context(running.connect()) for _ in range(server_module.MAX_REQUESTS)]
        for _ in range(3):
            assert_serves(running)
        # The oldest connection was closed for the first client, which then left its slot to the next client.
        assert silent[0].recv(1) == b""
        for end in silent[1:]:
            end.setblocking(False)
            with pytest.raises(BlockingIOError):
                end.recv(1)

    assert counted["streaming", "full"] == 1
    assert [(line["event"], line["count"]) for line in lines if line["log_level"] == "info"] == [
        ("refused connections", 1)
    ]


@contextmanager
def refused_by_reason() -> Iterator[Counter[tuple[str, ...]]]:
    counted: Counter[tuple[str, ...]] = Counter()

    def count(done: meter.Measurement) -> None:
        if done.kind is meter.Kind.REFUSED:
            counted[done.labels] += 1

    with meter.subscribed(count):
        yield counted


def test_refusals_are_counted_and_logged_periodically(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "LOG_SECONDS", 3600.0)  # a busy machine may need more than LOG_SECONDS
    with capture_logs() as lines, refused_by_reason() as counted:
        for _ in range(20):
            running.ask("/exec/guess", SPDY + V4)[1].close()

    assert counted["streaming", "404"] == 20  # a connection of an earlier test may be refused late
    assert len([line for line in lines if line["log_level"] != "debug"]) == 1


def test_a_refused_client_that_keeps_sending_is_disconnected(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REFUSED_SECONDS", 0.3)
    with running.connect() as trickler:
        trickler.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert seconds_of_trickle(trickler) < 5


def test_the_number_of_clients_that_read_refusals_is_bounded(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REFUSED_SECONDS", 3600.0)
    with ExitStack() as open_ones:
        refused = []
        for _ in range(65):
            answer, connected = running.ask("/exec/guess", SPDY + V4)
            refused.append(open_ones.enter_context(connected))
            assert status(answer) == 404

        wait_until(lambda: has_ended(refused[0]))
        assert not has_ended(refused[1])


def has_ended(connected: socket.socket) -> bool:
    """Return whether the server has stopped reading."""
    try:
        connected.sendall(b"x")
    except OSError:
        return True
    return False


def test_connections_without_a_session_are_bounded_and_further_ones_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_STARTING", 2)
    with serving(Config()) as running:
        silent = [running.connect() for _ in range(2)]
        with running.connect() as waiting:
            waiting.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            waiting.settimeout(0.5)
            with pytest.raises(TimeoutError):
                read_head(waiting)
            waiting.settimeout(SECONDS)
            silent[0].close()
            assert status(read_head(waiting)) == 403
        silent[1].close()


def test_refused_clients_do_not_occupy_request_slots(running: Running) -> None:
    with ExitStack() as open_ones:
        for _ in range(2 * server_module.MAX_REFUSED):
            answer, connected = running.ask("/exec/guess", SPDY + V4)
            open_ones.enter_context(connected)
            assert status(answer) == 404
        assert_serves(running)


def test_sessions_are_limited_for_each_container_and_in_total() -> None:
    with serving(Config(), max_sessions=3, max_sessions_each=2) as running, ExitStack() as open_ones:
        paths = [
            running.path(PortForwardTask(sandbox_id=SandboxId(pod), ports=())) for pod in ("a", "a", "a", "b", "c")
        ]
        answers = []
        for path in paths:
            answer, connected = running.ask(path, SPDY)
            open_ones.enter_context(connected)
            answers.append(connected if status(answer) == 101 else connected.recv(1000))
        assert [isinstance(answer, bytes) for answer in answers] == [False, False, True, False, True]
        assert answers[2] == (
            b"2 streaming sessions of a are open, the most that streaming_max_sessions_per_container allows\n"
        )
        assert answers[4] == b"3 streaming sessions are open, the most that streaming_max_sessions allows\n"
        assert isinstance(answers[0], socket.socket)
        answers[0].close()
        wait_until(lambda: running.server._admission.enter(PortForwardTask(sandbox_id=SandboxId("d"), ports=())) == "")
        running.server._admission.leave(PortForwardTask(sandbox_id=SandboxId("d"), ports=()))

        # The token of a refused request still works.
        answer, connected = running.ask(paths[2], SPDY)
        open_ones.enter_context(connected)
        assert status(answer) == 101


def test_the_task_limits_the_streams_of_its_client() -> None:
    refused = threading.Event()
    with serving(Config(), until=refused) as running, opened_session(running) as connected:
        client = SpdyClient(connected)
        opened = [client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")]
        more = {client.open(streamtype="error") for _ in range(7)}
        client.read_until_ended(*more)
        assert client.reset == more

        refused.set()
        client.read_to_end()
    assert client.received == {opened[1]: b"hello"}


def test_a_port_forward_may_have_1002_streams() -> None:
    leave = threading.Event()
    with serving(Config(), until=leave) as running:
        answer, connected = running.ask(running.path(PortForwardTask(sandbox_id=SandboxId("a"), ports=())), SPDY)
        with connected:
            assert status(answer) == 101
            client = SpdyClient(connected)
            last = [client.open(streamtype="data") for _ in range(1003)][-1]
            client.read_until_ended(last)
            assert client.reset == {last}
            leave.set()


def assert_serves(running: Running) -> None:
    """Check that a whole session is served."""
    with opened_session(running) as connected:
        client = SpdyClient(connected)
        opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
        client.read_to_end()
    assert client.received == {opened["stdout"]: b"hello"}


def opened_session(running: Running) -> socket.socket:
    answer, connected = running.ask(running.path(), SPDY + V4)
    assert status(answer) == 101
    return connected


def test_no_free_thread_for_a_connection_ends_only_this_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as short:
        no_thread_for("stream", short)
        with running.connect() as refused:
            assert refused.recv(1) == b""
    assert_serves(running)


def test_no_free_thread_for_a_session_ends_only_this_session(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        no_thread_for("exec client", short)
        with opened_session(running) as refused:
            assert refused.recv(1) == b""
    assert_serves(running)


def test_no_free_descriptor_for_a_session_ends_only_this_session(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(os, "eventfd", full)
        with opened_session(running) as refused:
            assert refused.recv(1) == b""
    assert_serves(running)


def test_stop_ends_all_sessions() -> None:
    with serving(Config()) as running:
        asked = PortForwardTask(sandbox_id=SandboxId("s"), ports=())
        answer, connected = running.ask(running.path(asked), SPDY)
        assert status(answer) == 101
        ended = threading.Event()

        def read() -> None:
            connected.recv(1)
            ended.set()

        threading.Thread(target=read).start()
        assert running.server.stop(grace=SECONDS)
        assert ended.wait(SECONDS)
        connected.close()


def tls_of(certificate: tuple[Path, Path]) -> tuple[Config, ssl.SSLContext]:
    cert, key = map(str, certificate)
    return Config(streaming_tls_cert_file=cert, streaming_tls_key_file=key), ssl.create_default_context(cafile=cert)


def read_to_the_end_of_tls(connected: ssl.SSLSocket) -> None:
    """Read to the end. Raise SSLEOFError if there is no close_notify (RFC 8446, 6.1)."""
    while connected.recv(1 << 16):
        pass


def test_a_tls_session_ends_with_close_notify(certificate: tuple[Path, Path]) -> None:
    config, context = tls_of(certificate)
    with (
        serving(config) as running,
        context.wrap_socket(running.connect(), server_hostname="127.0.0.1", suppress_ragged_eofs=False) as connected,
    ):
        headers = WEBSOCKET + "Sec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
        request = f"GET {running.path()} HTTP/1.1\r\nHost: {running.netloc}\r\n{headers}\r\n"
        connected.sendall(request.encode())
        assert status(read_head(connected)) == 101
        read_to_the_end_of_tls(connected)


def test_a_tls_session_that_the_client_ends_gets_close_notify(certificate: tuple[Path, Path]) -> None:
    config, context = tls_of(certificate)
    with (
        serving(config) as running,
        context.wrap_socket(running.connect(), server_hostname="127.0.0.1", suppress_ragged_eofs=False) as connected,
    ):
        asked = PortForwardTask(sandbox_id=SandboxId("s"), ports=(80,))
        headers = WEBSOCKET + "Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
        request = f"GET {running.path(asked)} HTTP/1.1\r\nHost: {running.netloc}\r\n{headers}\r\n"
        connected.sendall(request.encode())
        assert status(read_head(connected)) == 101
        connected.sendall(Connection(ConnectionType.CLIENT).send(CloseConnection(1000)))
        read_to_the_end_of_tls(connected)


def test_a_refusal_over_tls_ends_with_close_notify(certificate: tuple[Path, Path]) -> None:
    config, context = tls_of(certificate)
    with (
        serving(config) as running,
        context.wrap_socket(running.connect(), server_hostname="127.0.0.1", suppress_ragged_eofs=False) as connected,
    ):
        connected.sendall(f"GET / HTTP/1.1\r\nHost: {running.netloc}\r\n\r\n".encode())
        assert status(read_head(connected)) == 404
        read_to_the_end_of_tls(connected)


def test_a_silent_tls_handshake_loses_its_slot(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_REQUESTS", 2)
    config, context = tls_of(certificate)
    with serving(config) as running, ExitStack() as open_ones:
        silent = [open_ones.enter_context(running.connect()) for _ in range(3)]
        assert silent[0].recv(1) == b""
        with context.wrap_socket(running.connect(), server_hostname="127.0.0.1") as connected:
            connected.sendall(f"GET / HTTP/1.1\r\nHost: {running.netloc}\r\n\r\n".encode())
            assert status(read_head(connected)) == 404


def test_tls_requires_the_client_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    config = Config(streaming_tls_cert_file=cert, streaming_tls_key_file=key, streaming_tls_client_ca_file=cert)
    context = ssl.create_default_context(cafile=cert)
    with serving(config) as running:
        path = running.path()
        # With TLS 1.3 a client without the required certificate gets the error at its first read.
        with (
            context.wrap_socket(running.connect(), server_hostname="127.0.0.1") as stranger,
            pytest.raises(ssl.SSLError, match="certificate required"),
        ):
            stranger.recv(1)
        context.load_cert_chain(cert, key)
        with context.wrap_socket(running.connect(), server_hostname="127.0.0.1") as connected:
            connected.sendall(f"POST {path} HTTP/1.1\r\nHost: {running.netloc}\r\n{SPDY}{V4}\r\n".encode())
            assert status(read_head(connected)) == 101
            client = SpdyClient(connected)
            opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
            client.read_until_ended(opened["stdout"], opened["error"])
            assert client.received == {opened["stdout"]: b"hello"}
