# ruff: noqa: N802 - gRPC names the methods
"""The door behind a socket of systemd, with the real socket, threads and gRPC; systemd is played by the test."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.cri import activation
from shim.cri.server import CriServer
from tests.cri.conftest import SECONDS, client


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
            server.stop(grace=0)
        self.listener.close()


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    systemd = Systemd(tmp_path / "cri.sock", monkeypatch)
    yield systemd
    systemd.end()


def test_a_client_is_answered(systemd: Systemd) -> None:
    systemd.start(Runtime())

    with client(systemd.path) as channel:
        assert api.RuntimeServiceStub(channel).Version(pb.VersionRequest(version="v1")).version == "v1"


def test_a_client_that_came_before_the_server_is_answered(systemd: Systemd) -> None:
    with client(systemd.path) as channel:
        connected = grpc.channel_ready_future(channel)
        early = api.RuntimeServiceStub(channel).Version.future(pb.VersionRequest(version="v1"), wait_for_ready=True)
        assert not connected.done()

        systemd.start(Runtime())

        assert early.result(SECONDS).version == "v1"


def test_large_messages_pass_both_ways(systemd: Systemd) -> None:
    systemd.start(Runtime())
    large = "x" * (20 << 20)

    with client(systemd.path) as channel:
        assert api.RuntimeServiceStub(channel).Version(pb.VersionRequest(version=large)).version == large


def test_the_last_answer_leaves_before_the_stop_returns(systemd: Systemd) -> None:
    runtime = Runtime()
    server = systemd.start(runtime)
    with client(systemd.path) as channel:
        call = api.RuntimeServiceStub(channel).StopContainer.future(pb.StopContainerRequest())
        assert runtime.entered.wait(SECONDS)
        stopped = threading.Thread(target=server.stop, kwargs={"grace": SECONDS})
        stopped.start()

        runtime.leave.set()

        assert call.result(SECONDS) == pb.StopContainerResponse()
        stopped.join(SECONDS)
        assert not stopped.is_alive()


def test_clients_between_two_servers_wait_in_the_queue_of_systemd(systemd: Systemd) -> None:
    systemd.start(Runtime()).stop(grace=SECONDS)
    assert systemd.path.is_socket()

    with client(systemd.path) as channel:
        waiting = api.RuntimeServiceStub(channel).Version.future(pb.VersionRequest(version="v1"), wait_for_ready=True)
        systemd.start(Runtime())

        assert waiting.result(SECONDS).version == "v1"


def test_no_file_of_the_inner_socket_is_left(systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
