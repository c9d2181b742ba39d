# ruff: noqa: N802 - gRPC names the methods
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc
from shim.cri import probe
from shim.cri.refusal import NO_START, WRONG_SETTINGS
from shim.cri.server import CriServer
from shim.doctor import clients
from shim.doctor.clients import check_clients
from shim.doctor.findings import Finding
from shim.doctor.kubelet_settings import Kubelet, Setting
from shim.doctor.units import Unit, Units
from shim.domain.errors import Unavailable
from tests.users import unprivileged_files


class Runtime(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        return pb.VersionResponse(runtime_name="docker", runtime_version="28.5.2")

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        return pb.StatusResponse(status=pb.RuntimeStatus(conditions=[RUNTIME, NETWORK]))


RUNTIME = pb.RuntimeCondition(type="RuntimeReady", status=True)
NETWORK = pb.RuntimeCondition(type="NetworkReady", status=False, reason="NetworkPluginNotReady", message="no network")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine five seconds may pass before an answer that is there."""
    monkeypatch.setattr(probe, "_SECONDS", 60.0)


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/the cri 100%.sock"


NO_KUBELET = Kubelet()
NO_SYSTEMD = Units(booted=False, trouble="this machine does not run systemd")
RUNS = Unit(load="loaded", active="active", sub="running", file="enabled", result="success")
STOPPED = Unit(load="loaded", active="inactive", sub="dead", file="enabled", result="success")
FAILED = Unit(load="loaded", active="failed", sub="failed", file="enabled", result="exit-code", status=2)


def found(
    endpoint: str,
    *others: Path,
    units: Units = NO_SYSTEMD,
    kubelet: Kubelet = NO_KUBELET,
    has_network: bool = False,
) -> dict[str, Finding]:
    findings = check_clients(endpoint, units=units, kubelet=kubelet, has_network=lambda: has_network, others=others)
    return {finding.subject: finding for finding in findings}


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


def test_a_server_that_does_not_run_is_a_warning(endpoint: str) -> None:
    finding = found(endpoint)["server"]

    assert finding == Finding("warn", "server", f"none runs at {endpoint}", "start it: pydockershim serve")


def test_a_socket_without_a_server(endpoint: str) -> None:
    path = endpoint.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)

        finding = found(endpoint, units=Units(service=STOPPED))["server"]
    assert finding.text == f"none runs at {endpoint}"
    assert finding.advice == "start it: systemctl enable --now pydockershim.service"


class WithoutDocker(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        raise Unavailable("read docker's info: docker cannot be reached")


def test_a_server_whose_docker_is_away(endpoint: str) -> None:
    with serving(endpoint, WithoutDocker()):
        finding = found(endpoint)["server"]

    assert finding.level == "warn"
    assert finding.text.endswith("docker cannot be reached")
    assert finding.advice == "the server runs, but Docker does not answer it: see what is said of docker above"


class WithoutMetrics(Runtime):
    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        ready = [pb.RuntimeCondition(type=name, status=True) for name in ("RuntimeReady", "NetworkReady")]
        flaw = pb.RuntimeCondition(type="MetricsReady", status=False, message="serve metrics at 127.0.0.1:1: in use")
        return pb.StatusResponse(status=pb.RuntimeStatus(conditions=[*ready, flaw]))


def test_a_server_without_metrics_is_a_warning(endpoint: str) -> None:
    with serving(endpoint, WithoutMetrics()):
        server = found(endpoint)["server"]

    assert server.level == "warn"
    assert server.text.endswith("but: serve metrics at 127.0.0.1:1: in use")
    assert server.advice.startswith("set an address of this node with a free port")


class Refused(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        raise Unavailable(f"{WRONG_SETTINGS}: file /etc/c.toml, line 7: there is no setting 'x'")


def test_a_server_whose_settings_are_wrong_fails(endpoint: str) -> None:
    with serving(endpoint, Refused()):
        server = found(endpoint)["server"]

    assert server.level == "FAIL"
    assert "file /etc/c.toml, line 7: there is no setting 'x'" in server.text
    assert server.advice.startswith("correct it: ")


class CannotStart(api_pb2_grpc.RuntimeServiceServicer):
    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:
        raise Unavailable(f"{NO_START}: root_directory /srv is not the server's own")


def test_a_server_that_cannot_start_fails(endpoint: str) -> None:
    with serving(endpoint, CannotStart()):
        server = found(endpoint)["server"]

    assert server.level == "FAIL"
    assert "root_directory /srv is not the server's own" in server.text
    assert server.advice == "remove the cause: the server tries again within 30 s"


def test_a_server_that_has_earlier_settings_without_a_network_fails(endpoint: str) -> None:
    with serving(endpoint, Runtime()):
        server = found(endpoint, has_network=True)["server"]

    assert server.level == "FAIL"
    assert server.text.endswith("but has no pod network: NetworkPluginNotReady: no network")
    assert server.advice.endswith("systemctl restart pydockershim.service")


class WithDockerDown(Runtime):
    """It knows its Docker from before, as Version may say; only Status reports how it is now."""

    def Status(self, request: pb.StatusRequest, context: grpc.ServicerContext) -> pb.StatusResponse:
        down = pb.RuntimeCondition(type="RuntimeReady", reason="DockerDaemonNotReady", message="connection refused")
        return pb.StatusResponse(status=pb.RuntimeStatus(conditions=[down, NETWORK]))


def test_a_server_whose_docker_went_away_is_not_ok(endpoint: str) -> None:
    with serving(endpoint, WithDockerDown()):
        finding = found(endpoint)["server"]

    assert finding.level == "warn"
    assert finding.text == (
        f"docker 28.5.2 answers at {endpoint}, but is not ready: DockerDaemonNotReady: connection refused"
    )
    assert finding.advice == "the server runs, but Docker does not answer it: see what is said of docker above"


def test_a_server_that_is_no_cri_server(endpoint: str) -> None:
    with serving(endpoint, api_pb2_grpc.RuntimeServiceServicer()):
        finding = found(endpoint)["server"]

    assert finding.text.endswith("is not a CRI server: it does not know Version or Status")
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


def test_a_socket_that_does_not_answer(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(endpoint.removeprefix("unix://"))
        silent.listen()
        finding = found(endpoint)["server"]

    assert finding.text.endswith("does not answer within 0.2 s")
    assert finding.advice.startswith("find what holds that socket")


def test_a_file_that_is_no_socket_is_a_warning(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("unix://"))
    path.touch()

    finding = found(endpoint)["server"]
    assert (finding.level, finding.text) == ("warn", f"{path} is not a socket")


def test_sockets_that_are_not_for_this_user(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    with serving(endpoint, Runtime()), unprivileged_files():
        findings = found(endpoint, tmp_path / "private/containerd.sock")

    assert "permission denied" in findings["server"].text
    assert findings["server"].advice == "run as root"
    assert "private/containerd.sock" in findings["kubeadm"].text


def test_the_flags_for_clients(endpoint: str, tmp_path: Path) -> None:
    other = tmp_path / "containerd.sock"
    assert set(found(endpoint, other)) == {"server", "unit", "kubelet"}

    other.touch()
    findings = found(endpoint, other)
    assert findings["kubelet"].text.endswith(f" it takes --container-runtime-endpoint={endpoint}")
    assert findings["kubeadm"].text == f"--cri-socket {endpoint}, since it also finds {other}"


def test_a_socket_of_systemd_is_asked_where_it_listens(endpoint: str) -> None:
    listens = Unit(load="loaded", active="active", listens=endpoint.removeprefix("unix://"))
    with serving(endpoint, Runtime()):
        findings = found("fd://", units=Units(service=RUNS, socket=listens))

    assert findings["server"] == Finding("ok", "server", f"docker 28.5.2 answers at {endpoint}")
    assert findings["kubelet"].text.endswith(f" it takes --container-runtime-endpoint={endpoint}")


def test_a_socket_of_systemd_without_systemd(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr(clients, "listens_by_file", lambda: endpoint.removeprefix("unix://"))
    with serving(endpoint, Runtime()):
        assert found("fd://")["server"].level == "ok"

    monkeypatch.setattr(clients, "listens_by_file", lambda: "")
    assert found("fd://")["kubelet"].text.endswith("--container-runtime-endpoint=unix:///run/cri-dockerd.sock")


def test_a_service_that_systemd_would_start_is_not_started(endpoint: str) -> None:
    path = endpoint.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(path)
        held.listen()
        held.setblocking(False)
        units = Units(service=STOPPED, socket=Unit(load="loaded", active="active", listens=path))
        findings = found("fd://", units=units)

        with pytest.raises(BlockingIOError):  # nothing has connected
            held.accept()
    assert (findings["server"].level, findings["unit"].level) == ("ok", "ok")
    assert "starts it with the first client" in findings["server"].text


def test_a_unit_that_runs(endpoint: str) -> None:
    finding = found(endpoint, units=Units(service=RUNS))["unit"]

    assert finding == Finding("ok", "unit", "pydockershim.service is active (running)")


@pytest.mark.parametrize(
    ("service", "cause", "text", "advice"),
    [
        pytest.param(FAILED, "no setting 'x'", "has failed: exit status 2, a wrong flag or setting: no setting 'x'",
                     "correct that setting", id="setting"),
        pytest.param(replace(FAILED, status=203), "", "203, the program of ExecStart=", "install", id="exec"),
        pytest.param(replace(FAILED, status=1, active="activating", sub="auto-restart"), "endpoint in use",
                     "is started again and again: exit status 1: endpoint in use", "journalctl", id="again"),
        pytest.param(replace(FAILED, result="oom-kill"), "", "for lack of memory", "MemoryMax=", id="memory"),
        pytest.param(replace(FAILED, result="signal", status=9), "", "ended by signal 9", "journalctl", id="signal"),
        pytest.param(replace(FAILED, result="timeout"), "", "has failed: timeout", "journalctl", id="timeout"),
        pytest.param(replace(FAILED, load="bad-setting"), "", "cannot use", "systemctl status", id="bad"),
        pytest.param(replace(STOPPED, load="masked"), "", "masked", "systemctl unmask pydockershim", id="masked"),
    ],
)  # fmt: skip
def test_a_unit_that_has_failed(endpoint: str, service: Unit, cause: str, text: str, advice: str) -> None:
    finding = found(endpoint, units=Units(service=service, cause=cause))["unit"]

    assert finding.level == "FAIL"
    assert text in finding.text
    assert advice in finding.advice


def test_a_unit_that_has_failed_because_another_server_is_there(endpoint: str) -> None:
    with serving(endpoint, Runtime()):
        findings = found(endpoint, units=Units(service=replace(FAILED, status=1), cause="another server answers there"))

    assert findings["server"].level == "ok"
    assert (findings["unit"].level, findings["unit"].text[-28:]) == ("warn", "another server answers there")


@pytest.mark.parametrize(
    ("service", "text"),
    [
        (replace(RUNS, file="disabled"), "not after a reboot"),
        (replace(RUNS, restarts=7), "starts again: 7"),
    ],
)
def test_a_unit_that_is_not_as_it_should_be(endpoint: str, service: Unit, text: str) -> None:
    finding = found(endpoint, units=Units(service=service))["unit"]

    assert finding.level == "warn"
    assert text in finding.text
    assert finding.advice


def test_the_failure_of_a_unit_comes_before_the_missing_server(endpoint: str) -> None:
    units = Units(service=STOPPED, socket=Unit(load="loaded", active="inactive"))

    unit, server, *_ = found(endpoint, units=units).values()

    assert (unit.level, unit.text) == ("FAIL", "pydockershim.service is inactive")
    assert unit.advice == "systemctl enable --now pydockershim.socket pydockershim.service"
    assert (server.subject, server.level) == ("server", "warn")


def test_a_unit_that_is_not_installed(endpoint: str) -> None:
    assert "not installed" in found(endpoint, units=Units(service=Unit(load="not-found")))["unit"].text


def test_a_server_beside_a_unit_that_does_not_run(endpoint: str) -> None:
    with serving(endpoint, Runtime()):
        finding = found(endpoint, units=Units(service=STOPPED))["unit"]

    assert "another program holds the socket" in finding.text


def test_units_that_cannot_be_asked_about(endpoint: str) -> None:
    assert found(endpoint)["unit"] == Finding("ok", "unit", "this machine does not run systemd")

    finding = found(endpoint, units=Units(trouble="systemctl show: not finished within 4 s, killed"))["unit"]
    assert (finding.level, finding.text[:22]) == ("warn", "cannot be asked about:")


@pytest.mark.parametrize("service", [
    pytest.param(replace(FAILED, status=1, active="activating", sub="start", restarts=2), id="in a start"),
    pytest.param(replace(FAILED, status=1, active="activating", sub="auto-restart", restarts=2), id="before a start"),
])  # fmt: skip
def test_a_loop_of_starts_fails_at_every_moment(endpoint: str, service: Unit) -> None:
    finding = found(endpoint, units=Units(service=service))["unit"]

    assert finding.level == "FAIL"
    assert "is started again and again: exit status 1" in finding.text


def test_a_socket_that_was_removed_under_a_server_that_runs(endpoint: str) -> None:
    listens = Unit(load="loaded", active="active", listens=endpoint.removeprefix("unix://"))

    server = found("fd://", units=Units(service=RUNS, socket=listens))["server"]

    assert server.level == "FAIL"
    assert server.advice == "systemctl restart pydockershim.socket pydockershim.service"


def test_a_server_that_does_not_answer_while_its_unit_runs(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SECONDS", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(endpoint.removeprefix("unix://"))
        silent.listen()
        finding = found(endpoint, units=Units(service=RUNS))["server"]

    assert finding.advice.endswith("then systemctl restart pydockershim.service")


def test_a_kubelet_that_uses_another_runtime_fails(endpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    other = Setting("unix:///run/containerd/containerd.sock", file, "containerRuntimeEndpoint")
    kubelet = Kubelet(config=file, settings={"containerRuntimeEndpoint": other})

    finding = found(endpoint, kubelet=kubelet)["kubelet"]

    assert finding.level == "FAIL"
    assert "uses unix:///run/containerd/containerd.sock" in finding.text
    assert finding.advice.startswith("sed -i")
    assert finding.advice.endswith(f"{file} && systemctl restart kubelet")
    assert found(endpoint, kubelet=Kubelet(config=file))["kubelet"].level == "FAIL"  # its default is containerd


def test_a_kubelet_whose_file_is_broken_may_use_any_runtime(endpoint: str, tmp_path: Path) -> None:
    broken = Kubelet(config=tmp_path / "config.yaml", problem="config.yaml is not YAML")

    assert "kubelet" not in found(endpoint, kubelet=broken)


def test_a_kubelet_may_name_the_socket_by_a_link(endpoint: str, tmp_path: Path) -> None:
    (tmp_path / "var").symlink_to(tmp_path)
    same = Setting(f"unix://{tmp_path}/var/{Path(endpoint).name}", None, "--container-runtime-endpoint")

    finding = found(endpoint, kubelet=Kubelet(flags=["v"], settings={"containerRuntimeEndpoint": same}))["kubelet"]

    assert finding == Finding("ok", "kubelet", f"uses {endpoint}")
