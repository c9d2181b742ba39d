# ruff: noqa: N802 - gRPC names the methods
"""The relay behind systemd's socket, with real sockets, threads and gRPC; the test plays systemd."""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.cri import activation, relay
from shim.cri.server import CriServer
from tests.cri.conftest import SECONDS, client
from tests.threads import no_thread_for


class Runtime(api.RuntimeServiceServicer):
    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        return pb.VersionResponse(version=request.version)

    def StopContainer(
        self, request: pb.StopContainerRequest, context: grpc.ServicerContext
    ) -> pb.StopContainerResponse:
        self.entered.set()
        assert self.leave.wait(SECONDS)
        return pb.StopContainerResponse()


class Systemd:
    """Listens at a path and passes a copy of the socket to each server it starts."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self._monkeypatch = monkeypatch
        self._servers: list[CriServer] = []

    def start(self, runtime: api.RuntimeServiceServicer) -> CriServer:
        self._monkeypatch.setattr(activation, "_FIRST_FD", os.dup(self.listener.fileno()))
        server = CriServer(
            endpoint="fd://",
            runtime=runtime,
            image=api.ImageServiceServicer(),
            environ={"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"},
        )
        self._servers.append(server)
        server.start()
        return server

    def end(self) -> None:
        for server in self._servers:
            server.stop()
        self.listener.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    systemd = Systemd(tmp_path / "cri.sock", monkeypatch)
    yield systemd
    systemd.end()


def test_a_client_is_relayed(systemd: Systemd) -> None:
    systemd.start(Runtime())

    with client(systemd.path) as channel:
        assert api.RuntimeServiceStub(channel).Version(pb.VersionRequest(version="v1")).version == "v1"


def test_a_client_that_connected_before_the_server_is_answered(systemd: Systemd) -> None:
    with client(systemd.path) as channel:
        connected = grpc.channel_ready_future(channel)
        early = api.RuntimeServiceStub(channel).Version.future(pb.VersionRequest(version="v1"), wait_for_ready=True)
        assert not connected.done()

        systemd.start(Runtime())

        assert early.result(SECONDS).version == "v1"


class NoDescriptor(socket.socket):
    """Fail to create a socket, as if accepting the client had taken the last descriptor."""

    def __init__(self, family: int = -1, kind: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        if fileno is None and threading.current_thread().name == "relay":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        super().__init__(family, kind, proto, fileno)


def no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", NoDescriptor)


def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    no_thread_for("relay", monkeypatch)


def no_thread_back(monkeypatch: pytest.MonkeyPatch) -> None:
    no_thread_for("relay-back", monkeypatch)


@pytest.mark.parametrize("nothing_left", [no_descriptor, no_thread, no_thread_back])
def test_a_client_without_a_free_descriptor_is_refused_and_later_clients_are_answered(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, nothing_left: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr(relay, "_PAUSE", 0.001)
    systemd.start(Runtime())
    with socket.socket(socket.AF_UNIX) as early:
        early.settimeout(SECONDS)
        with monkeypatch.context() as short:
            nothing_left(short)
            early.connect(str(systemd.path))
            while early.recv(1 << 16):
                pass
    with client(systemd.path) as channel:
        ask = api.RuntimeServiceStub(channel).Version
        assert ask(pb.VersionRequest(version="v1"), timeout=SECONDS).version == "v1"


def test_large_messages_pass_both_ways(systemd: Systemd) -> None:
    systemd.start(Runtime())
    large = "x" * (20 << 20)

    with client(systemd.path) as channel:
        assert api.RuntimeServiceStub(channel).Version(pb.VersionRequest(version=large)).version == large


def test_the_last_answer_is_sent_before_the_stop_returns(systemd: Systemd) -> None:
    runtime = Runtime()
    server = systemd.start(runtime)
    with client(systemd.path) as channel:
        call = api.RuntimeServiceStub(channel).StopContainer.future(pb.StopContainerRequest())
        assert runtime.entered.wait(SECONDS)
        stopped = threading.Thread(target=server.stop)
        stopped.start()

        runtime.leave.set()

        assert call.result(SECONDS) == pb.StopContainerResponse()
        stopped.join(SECONDS)
        assert not stopped.is_alive()


def test_clients_wait_in_systemds_queue_between_two_servers(systemd: Systemd) -> None:
    systemd.start(Runtime()).stop()
    assert systemd.path.is_socket()

    with client(systemd.path) as channel:
        waiting = api.RuntimeServiceStub(channel).Version.future(pb.VersionRequest(version="v1"), wait_for_ready=True)
        systemd.start(Runtime())

        assert waiting.result(SECONDS).version == "v1"


def test_the_file_of_grpcs_socket_is_deleted(systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    systemd.start(Runtime())

    assert list(scratch.iterdir()) == []


def test_a_client_that_goes_away_leaves_no_thread(systemd: Systemd) -> None:
    systemd.start(Runtime())
    with client(systemd.path) as channel:
        api.RuntimeServiceStub(channel).Version(pb.VersionRequest(), timeout=SECONDS)
        carrying = [thread for thread in threading.enumerate() if thread.name.startswith("relay-back")]

    assert carrying
    for thread in carrying:
        thread.join(SECONDS)
        assert not thread.is_alive()
