# ruff: noqa: N802 - gRPC names the methods
import socket
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.cri.server import CriServer
from shim.doctor.clients import check_clients
from shim.doctor.findings import Finding


class Runtime(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        return pb.VersionResponse(runtime_name="docker", runtime_version="28.5.2")


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/the cri 100%.sock"


def found(endpoint: str, *others: Path) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_clients(endpoint, others=others)}


def test_a_server_that_runs(endpoint: str) -> None:
    server = CriServer(endpoint=endpoint, runtime=Runtime(), image=api_pb2_grpc.ImageServiceServicer(), environ={})
    server.start()
    try:
        finding = found(endpoint)["server"]
    finally:
        server.stop(grace=0)

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
    assert finding.level == "warn"
    assert finding.text.startswith(f"{path} does not answer as a CRI server: ")


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
