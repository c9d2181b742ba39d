# ruff: noqa: N802 - gRPC names the methods
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.cri import probe
from shim.cri.server import CriServer
from shim.doctor.clients import check_clients
from shim.doctor.findings import Finding
from shim.errors import Unavailable
from tests.users import nobodys_files


class Runtime(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        return pb.VersionResponse(runtime_name="docker", runtime_version="28.5.2")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine five seconds may pass before an answer that is there."""
    monkeypatch.setattr(probe, "_SECONDS", 60.0)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/the cri 100%.sock"


def found(endpoint: str, *others: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_clients(endpoint, others=others)}


@contextmanager
def serving(endpoint: str, runtime: api_pb2_grpc.RuntimeServiceServicer) -> Iterator[None]:
    server = CriServer(endpoint=endpoint, runtime=runtime, image=api_pb2_grpc.ImageServiceServicer(), environ={})
    server.start()
    try:
        yield
    finally:
        server.stop()


def test_a_server_that_runs(endpoint: str) -> None:
    with serving(endpoint, Runtime()):
        finding = found(endpoint)["server"]

    assert finding == Finding("ok", "server", f"docker 28.5.2 answers at {endpoint}")


def test_none_that_runs(endpoint: str) -> None:
    finding = found(endpoint)["server"]

    assert finding.level == "ok"
    assert "pydockershim serve" in finding.text


def test_a_socket_that_nobody_serves(endpoint: str) -> None:
    path = endpoint.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)

        finding = found(endpoint)["server"]
    assert finding == Finding("ok", "server", f"none runs at {endpoint}; start it with: pydockershim serve")


class WithoutDocker(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        raise Unavailable("read docker's info: docker cannot be reached")


def test_a_server_whose_docker_is_away(endpoint: str) -> None:
    with serving(endpoint, WithoutDocker()):
        finding = found(endpoint)["server"]

    assert finding.level == "warn"
    assert finding.text.endswith("docker cannot be reached")
    assert finding.advice == "the server runs, but Docker does not answer it: see what is said of docker above"


def test_a_server_that_is_no_cri_server(endpoint: str) -> None:
    with serving(endpoint, api_pb2_grpc.RuntimeServiceServicer()):
        finding = found(endpoint)["server"]

    assert finding.text.endswith("is not a CRI server: it does not know the call Version")
    assert finding.advice.startswith("end what holds that socket")


def test_a_server_that_speaks_no_grpc(endpoint: str) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener, answering(listener, endpoint, b"HTTP/1.1 400 No\r\n\r\n"):
        finding = found(endpoint)["server"]

    assert finding.text.endswith("is not a CRI server: it speaks no gRPC")
    assert finding.advice.startswith("end what holds that socket")


@contextmanager
def answering(listener: socket.socket, endpoint: str, answer: bytes) -> Iterator[None]:
    """Send `answer` to everyone who connects, and hang up."""
    listener.bind(endpoint.removeprefix("unix://"))
    listener.listen()

    def serve() -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as client, suppress(OSError):
                    client.recv(100)
                    client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_socket_behind_which_nobody_answers(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(endpoint.removeprefix("unix://"))
        silent.listen()
        finding = found(endpoint)["server"]

    assert finding.text.endswith("does not answer within 0.2 s")
    assert finding.advice.startswith("look at what holds that socket")


def test_what_is_no_socket(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("unix://"))
    path.touch()

    finding = found(endpoint)["server"]
    assert (finding.level, finding.text) == ("warn", f"{path} is not a socket")


def test_sockets_that_are_not_for_this_user(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    with serving(endpoint, Runtime()), nobodys_files():
        findings = found(endpoint, tmp_path / "private/containerd.sock")

    assert "permission denied" in findings["server"].text
    assert findings["server"].advice == "run as root"
    assert "private/containerd.sock" in findings["kubeadm"].text


def test_the_flags_for_clients(endpoint: str, tmp_path: Path) -> None:
    other = tmp_path / "containerd.sock"
    assert set(found(endpoint, other)) == {"server", "kubelet"}

    other.touch()
    findings = found(endpoint, other)
    assert findings["kubelet"].text == f"--container-runtime-endpoint={endpoint}"
    assert findings["kubeadm"].text == f"--cri-socket {endpoint}, since it also finds {other}"


def test_a_socket_of_systemd() -> None:
    (finding,) = check_clients("fd://")

    assert "pydockershim.socket" in finding.text
