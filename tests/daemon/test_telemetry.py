"""The metrics endpoint over a real socket."""

import contextlib
import http.client
import platform
import socket
import time
from collections.abc import Iterator
from importlib.metadata import version as installed
from socketserver import TCPServer

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from shim import __version__
from shim.api.v1 import CRI_VERSION
from shim.base import meter
from shim.base.meter import Kind
from shim.daemon import telemetry as telemetry_module
from shim.daemon.shim_leaks import ShimLeaks
from shim.daemon.telemetry import telemetry
from shim.domain.errors import FailedPrecondition
from shim.logs.protocol import Figures
from shim.runtime import Runtime
from shim.view.node_view import NodeView
from tests.descriptors import no_descriptor_free
from tests.fakes.engine import FakeEngine
from tests.fakes.logs import FakeLogs
from tests.streaming.client import seconds_of_trickle


@pytest.fixture
def view() -> NodeView:
    return NodeView(FakeEngine())


@pytest.fixture
def leaks(rt: Runtime) -> ShimLeaks:
    return ShimLeaks(rt)


@pytest.fixture
def port(view: NodeView, leaks: ShimLeaks) -> Iterator[int]:
    with telemetry("127.0.0.1:0", view=view, logs=FakeLogs(), leaks=leaks) as port:
        yield port


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(port: int) -> dict[tuple[str, ...], float]:
    """Return the values by name and label values."""
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_work_is_counted_by_its_labels(port: int) -> None:
    meter.report(Kind.RPC, "ListContainers", "OK", seconds=0.002)
    meter.report(Kind.RPC, "ListContainers", "OK", seconds=0.002)
    meter.report(Kind.RPC, "ListContainers", "UNAVAILABLE", seconds=1)
    meter.report(Kind.DOCKER, "inspect_container", "NotFound", seconds=0.5)
    meter.report(Kind.CNI, "bridge", "ADD", "ok", seconds=0.25)
    meter.report(Kind.STREAM, "exec", "Cancelled", seconds=600)

    found = samples(port)

    assert found["pydockershim_rpc_seconds_count", "OK", "ListContainers"] == 2
    assert found["pydockershim_rpc_seconds_count", "UNAVAILABLE", "ListContainers"] == 1
    assert found["pydockershim_stream_seconds_count", "exec", "Cancelled"] == 1
    assert found["pydockershim_docker_call_seconds_sum", "inspect_container", "NotFound"] == 0.5
    assert found["pydockershim_cni_run_seconds_count", "bridge", "ok", "ADD"] == 1


def test_view_metrics_are_reported(port: int, view: NodeView) -> None:
    found = samples(port)
    assert found[("pydockershim_view_up",)] == 0
    assert found["pydockershim_view_records", "containers"] == 0
    assert ("pydockershim_view_last_event_seconds",) not in found

    view.complete_sync(view.begin_sync())
    view.note_event()
    view.note_resync()

    found = samples(port)
    assert found[("pydockershim_view_up",)] == 1
    assert 0 <= found[("pydockershim_view_last_event_seconds",)] < 60
    assert 0 <= found[("pydockershim_view_compared_seconds",)] < 60
    assert found[("pydockershim_view_reconnects_total",)] == 0


def test_process_and_version_metrics_are_reported(port: int) -> None:
    found = samples(port)

    assert (
        found["pydockershim_build_info", CRI_VERSION, installed("grpcio"), platform.python_version(), __version__] == 1
    )
    assert found[("pydockershim_threads",)] >= 2
    assert found[("process_resident_memory_bytes",)] > 1 << 20
    assert found[("process_cpu_seconds_total",)] > 0
    assert 3 <= found[("process_open_fds",)] <= found[("process_max_fds",)]
    assert 0 < found[("process_start_time_seconds",)] <= time.time()


def test_health_follows_the_view(port: int, view: NodeView) -> None:
    status, reason = get(port, "/healthz")
    assert (status, "not been built" in reason) == (503, True)

    view.complete_sync(view.begin_sync())
    assert get(port, "/healthz") == (200, "ok\n")

    view.disconnect("docker is away")
    assert get(port, "/healthz") == (503, "docker is away\n")


def test_other_paths_are_not_found(port: int) -> None:
    assert get(port, "/")[0] == 404
    assert get(port, "/metrics?name[]=x")[0] == 200


@pytest.mark.parametrize(
    ("address", "warned"), [("127.0.0.1:0", False), ("[::1]:0", False), ("0.0.0.0:0", True), ("[::]:0", True)]
)
def test_reachable_address_is_a_warning(view: NodeView, leaks: ShimLeaks, address: str, *, warned: bool) -> None:
    with capture_logs() as logs, telemetry(address, view=view, logs=FakeLogs(), leaks=leaks):
        pass

    assert [line["address"] for line in logs if line["log_level"] == "warning"] == [address] * warned


def test_start_does_not_wait_for_dns(view: NodeView, leaks: ShimLeaks, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[str] = []
    monkeypatch.setattr(socket, "getfqdn", looked_up.append)
    with telemetry("127.0.0.1:0", view=view, logs=FakeLogs(), leaks=leaks):
        assert looked_up == []


@pytest.mark.parametrize(
    ("failure", "event", "level"),
    [
        (BrokenPipeError("broken pipe"), "metrics client disconnected", "debug"),
        (ValueError("a bug"), "failed to serve metrics", "error"),
    ],
)
def test_failing_answer_is_logged(
    port: int,
    view: NodeView,
    failure: Exception,
    event: str,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise failure

    monkeypatch.setattr(view, "stats", fail)
    with capture_logs() as lines, pytest.raises(http.client.RemoteDisconnected):
        get(port, "/healthz")

    assert [line["log_level"] for line in lines if line["event"] == event] == [level]
    assert "Traceback" not in capsys.readouterr().err


def test_silent_connections_do_not_block_clients(port: int, view: NodeView) -> None:
    view.complete_sync(view.begin_sync())
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(32)]
        for _ in range(3):
            assert get(port, "/healthz") == (200, "ok\n")
        assert [end.recv(1) for end in silent[:1]] == [b""]
        silent[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert silent[-1].recv(1) == b"H"

    assert samples(port)["pydockershim_refused_total", "full", "metrics"] >= 1


def test_trickling_request_times_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_module, "REQUEST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as trickler:
        assert seconds_of_trickle(trickler) < 5


def test_connection_can_be_reused(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("GET", "/metrics")
            assert connection.getresponse().read()


def test_refusals_are_counted_by_server_and_reason(port: int) -> None:
    meter.report(Kind.REFUSED, "streaming", "404", seconds=0)

    assert samples(port)["pydockershim_refused_total", "404", "streaming"] == 1


def test_ipv6_address_is_served(view: NodeView, leaks: ShimLeaks) -> None:
    with (
        telemetry("[::1]:0", view=view, logs=FakeLogs(), leaks=leaks) as port,
        socket.create_connection(("::1", port), timeout=20),
    ):
        pass


def test_address_in_use_is_an_error(view: NodeView, leaks: ShimLeaks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"

        with (
            pytest.raises(FailedPrecondition, match=f"serve metrics at {address}: "),
            telemetry(address, view=view, logs=FakeLogs(), leaks=leaks),
        ):
            pass


def test_port_is_free_after_the_block(view: NodeView, leaks: ShimLeaks) -> None:
    with telemetry("127.0.0.1:0", view=view, logs=FakeLogs(), leaks=leaks) as port:
        assert get(port, "/healthz")[0] == 503

    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthz")


def test_log_process_is_queried_at_each_scrape(view: NodeView, leaks: ShimLeaks) -> None:
    logs = FakeLogs()
    figures = Figures(followed=3, lines=500, unreadable=0, behind_bytes=7, blocked_logs=60, blocked=[])
    with telemetry("127.0.0.1:0", view=view, logs=logs, leaks=leaks) as port:
        assert samples(port)["pydockershim_logs_up",] == 0
        logs.figures = figures
        found = samples(port)
    assert found["pydockershim_logs_up",] == 1
    assert found["pydockershim_logs_lines_total",] == 500
    assert found["pydockershim_logs_behind_bytes",] == 7
    assert found["pydockershim_logs_followed",] == 3
    assert found["pydockershim_logs_blocked",] == 60


def test_a_shortage_of_descriptors_makes_the_server_wait(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[object] = []
    accept = TCPServer.get_request

    def counted(server: TCPServer) -> object:
        attempts.append(server)
        return accept(server)

    monkeypatch.setattr(TCPServer, "get_request", counted)
    with socket.socket() as client, no_descriptor_free():
        client.connect(("127.0.0.1", port))
        time.sleep(0.5)
        assert 1 <= len(attempts) <= 10
    assert get(port, "/healthz")[0] in {200, 503}
