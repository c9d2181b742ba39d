import errno
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shim.config.model import Config
from shim.ids import SandboxId
from shim.streaming import server as server_module
from shim.streaming.listener import listen
from shim.streaming.remotecommand import wait_streams
from shim.streaming.server import StreamServer
from shim.streaming.sessions import PortForwardTask, RemoteTask, Sessions, Task
from shim.streaming.transport import Session
from tests.streaming.client import SECONDS, SpdyClient, WebSocketClient, task
from tests.threads import no_thread_for

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
V4 = "X-Stream-Protocol-Version: v4.channel.k8s.io\r\n"
SPDY = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
WEBSOCKET = f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n"


@dataclass
class Running:
    server: StreamServer
    sessions: Sessions
    served: list[str]

    def connect(self) -> socket.socket:
        where = urlsplit(self.sessions.url_of(task()))
        return socket.create_connection((where.hostname or "", where.port or 0), timeout=SECONDS)

    def ask(self, path: str, headers: str, *, method: str = "POST", host: str = "") -> tuple[bytes, socket.socket]:
        """Send a request; give the head of the answer, and the connection."""
        where = urlsplit(self.sessions.url_of(task()))
        connected = self.connect()
        connected.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host or where.netloc}\r\n{headers}\r\n".encode())
        return read_head(connected), connected

    def path(self, for_: Task | None = None) -> str:
        return urlsplit(self.sessions.url_of(for_ or task())).path


def read_head(connected: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\r\n\r\n") and (byte := connected.recv(1)):
        answer += byte
    return answer


@contextmanager
def serving(config: Config) -> Iterator[Running]:
    listener = listen(config)
    sessions = Sessions(base_url=listener.base_url)
    served: list[str] = []

    def serve(task: Task, session: Session, protocol: str) -> None:
        served.append(protocol)
        if isinstance(task, RemoteTask):
            streams = wait_streams(session, task, protocol=protocol, seconds=SECONDS)
            assert streams.stdout is not None
            streams.stdout.write(b"hello")
            streams.stdout.finish()
            streams.error.finish()
        else:
            session.next_channel()

    server = StreamServer(listener, sessions=sessions, serve=serve, idle_timeout=0)
    server.start()
    try:
        yield Running(server, sessions, served)
    finally:
        assert server.stop(grace=SECONDS)


@pytest.fixture
def running() -> Iterator[Running]:
    with serving(Config()) as made:
        yield made


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_a_session_over_spdy(running: Running) -> None:
    answer, connected = running.ask(running.path(), SPDY + V4)
    assert status(answer) == 101
    with connected:
        client = SpdyClient(connected)
        opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
        client.read_to_end()

    assert client.received == {opened["stdout"]: b"hello"}
    assert running.served == ["v4.channel.k8s.io"]


def test_a_session_over_websocket(running: Running) -> None:
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
def test_each_form_of_websocket_is_opened(running: Running, kind: str, protocol: str, first: bytes | None) -> None:
    asked = None if kind == "exec" else PortForwardTask(sandbox_id=SandboxId("s"), ports=(80,))
    headers = WEBSOCKET + (f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else "")
    answer, connected = running.ask(running.path(asked), headers, method="GET")
    with connected:
        assert status(answer) == 101
        if first is not None:
            client = WebSocketClient(connected)
            got = client.read_messages(1)[0]
            assert (got.encode() if isinstance(got, str) else got) == first


def test_a_token_is_used_once_and_for_its_own_kind(running: Running) -> None:
    path = running.path()
    wrong, connected = running.ask(path.replace("/exec/", "/attach/"), SPDY + V4)
    connected.close()
    first, connected = running.ask(path, SPDY + V4)
    connected.close()
    again, connected = running.ask(path, SPDY + V4)
    connected.close()

    assert [status(answer) for answer in (wrong, first, again)] == [404, 101, 404]


def test_a_refused_protocol_does_not_use_the_token_up(running: Running) -> None:
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
def test_what_is_not_meant_for_us_is_refused(running: Running, headers: str, host: str, code: int) -> None:
    answer, connected = running.ask(running.path(), headers, host=host)
    connected.close()

    assert status(answer) == code


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n" * 10 + b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_garbage_is_answered_and_the_server_goes_on(running: Running, data: bytes) -> None:
    with running.connect() as connected:
        connected.sendall(data)
        connected.shutdown(socket.SHUT_WR)
        assert 400 <= status(read_head(connected)) <= 505

    answer, connected = running.ask(running.path(), SPDY + V4)
    connected.close()
    assert status(answer) == 101


def test_a_request_must_come_in_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.2)
    with running.connect() as connected:
        connected.sendall(b"POST /exec/")

        assert status(read_head(connected)) == 408


def test_clients_that_say_nothing_do_not_pile_up(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as open_ones:
        for _ in range(server_module.MAX_REQUESTS):
            open_ones.enter_context(running.connect())
        one_more = open_ones.enter_context(running.connect())
        try:
            assert one_more.recv(1) == b""
        except ConnectionResetError:
            return


def assert_serves(running: Running) -> None:
    """That a whole session is served."""
    with opened_session(running) as connected:
        client = SpdyClient(connected)
        opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
        client.read_to_end()
    assert client.received == {opened["stdout"]: b"hello"}


def opened_session(running: Running) -> socket.socket:
    answer, connected = running.ask(running.path(), SPDY + V4)
    assert status(answer) == 101
    return connected


def test_no_thread_for_a_connection_ends_that_one_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        no_thread_for("stream", short)
        with running.connect() as refused:
            assert refused.recv(1) == b""
    assert_serves(running)


def test_no_thread_for_a_session_ends_that_one_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as short:
        no_thread_for("exec client", short)
        with opened_session(running) as refused:
            assert refused.recv(1) == b""
    assert_serves(running)


def test_no_descriptor_for_a_session_ends_that_one_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(os, "eventfd", full)
        with opened_session(running) as refused:
            assert refused.recv(1) == b""
    assert_serves(running)


def test_a_stop_ends_the_sessions() -> None:
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


def test_tls_with_a_client_certificate(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    config = Config(streaming_tls_cert_file=cert, streaming_tls_key_file=key, streaming_tls_client_ca_file=cert)
    context = ssl.create_default_context(cafile=cert)
    with serving(config) as running:
        where = urlsplit(running.sessions.url_of(task()))
        path = running.path()
        # With TLS 1.3 the client learns only when it reads that its missing certificate was asked for.
        with (
            context.wrap_socket(running.connect(), server_hostname="127.0.0.1") as stranger,
            pytest.raises(ssl.SSLError, match="certificate required"),
        ):
            stranger.recv(1)
        context.load_cert_chain(cert, key)
        with context.wrap_socket(running.connect(), server_hostname="127.0.0.1") as connected:
            connected.sendall(f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\n{SPDY}{V4}\r\n".encode())
            assert status(read_head(connected)) == 101
            client = SpdyClient(connected)
            opened = {kind: client.open(streamtype=kind) for kind in ("error", "stdout", "stderr")}
            client.read_until_ended(opened["stdout"], opened["error"])
            assert client.received == {opened["stdout"]: b"hello"}
