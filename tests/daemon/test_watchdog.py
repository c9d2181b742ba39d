"""The watchdog with a real server and a real view."""

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.api.v1 import api_pb2_grpc as api
from shim.cri.server import CriServer
from shim.daemon.watchdog import Watchdog, check_server
from shim.domain.errors import DeadlineExceeded, NotFound, ShimError, Unavailable
from shim.view.node_view import NodeView
from tests.fakes.engine import FakeEngine

SECONDS = 60.0


class Runtime(api.RuntimeServiceServicer):
    """Version raises the set error, or hangs."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.hangs = False
        self.release = threading.Event()

    def Version(self, request: pb.VersionRequest, context: grpc.ServicerContext) -> pb.VersionResponse:  # noqa: N802
        if self.hangs:
            self.release.wait(SECONDS)
        if self.failure is not None:
            raise self.failure
        return pb.VersionResponse()


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    runtime = Runtime()
    yield runtime
    runtime.release.set()


@pytest.fixture
def server(runtime: Runtime, tmp_path: Path) -> Iterator[CriServer]:
    endpoint = f"unix://{tmp_path}/cri.sock"
    server = CriServer(endpoint=endpoint, runtime=runtime, image=api.ImageServiceServicer(), environ={})
    server.start()
    yield server
    runtime.release.set()
    server.stop()


@pytest.fixture
def view() -> NodeView:
    return NodeView(FakeEngine())


def test_answering_server_works(server: CriServer, view: NodeView) -> None:
    check_server(SECONDS, server=server, view=view)


def test_sick_docker_is_not_a_failure(server: CriServer, runtime: Runtime, view: NodeView) -> None:
    runtime.failure = Unavailable("docker is away")
    view.disconnect("docker is away")

    check_server(SECONDS, server=server, view=view)


def test_unanswered_rpc_is_a_failure(server: CriServer, runtime: Runtime, view: NodeView) -> None:
    runtime.hangs = True

    with pytest.raises(DeadlineExceeded, match=r"cri.sock does not answer within 0.5 s"):
        check_server(0.5, server=server, view=view)


def test_missing_socket_is_a_failure(server: CriServer, view: NodeView) -> None:
    server.address.unlink()

    with pytest.raises(NotFound, match=r"connect to .*cri\.sock"):
        check_server(SECONDS, server=server, view=view)


def test_draining_server_works(server: CriServer, view: NodeView) -> None:
    assert server.drain(grace=0)

    check_server(SECONDS, server=server, view=view)


class Checks:
    """A check with a result that the test sets, and the watchdog's calls."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.passed, self.failed = threading.Semaphore(0), threading.Semaphore(0)

    def check(self, _seconds: float) -> None:
        self.gate.wait(SECONDS)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def checks() -> Iterator[Checks]:
    checks = Checks()
    watchdog = Watchdog(seconds=2, check=checks.check, passed=checks.passed.release, failed=checks.failed.release)
    watchdog.start()
    yield checks
    checks.gate.set()
    watchdog.stop()


def test_systemd_is_notified_again_and_again(checks: Checks) -> None:
    for _ in range(3):
        assert checks.passed.acquire(timeout=SECONDS)


@pytest.mark.parametrize(
    ("failure", "text"), [(ShimError("no answer"), "no answer"), (ZeroDivisionError(), "ZeroDivisionError()")]
)
def test_a_failure_is_reported_once_and_systemd_is_not_notified(checks: Checks, failure: Exception, text: str) -> None:
    with capture_logs() as lines:
        checks.failure = failure
        assert checks.failed.acquire(timeout=SECONDS)
        checks.failure = None
        while checks.passed.acquire(blocking=False):
            pass
        assert checks.passed.acquire(timeout=SECONDS)

    reports = [line for line in lines if line["event"] == "server does not work, systemd will restart it"]
    assert [line["error"] for line in reports] == [text]


def test_hanging_check_is_reported(checks: Checks) -> None:
    checks.gate.clear()
    assert checks.failed.acquire(timeout=SECONDS)
    while checks.passed.acquire(blocking=False):
        pass

    assert not checks.passed.acquire(blocking=False)
    checks.gate.set()
    assert checks.passed.acquire(timeout=SECONDS)
