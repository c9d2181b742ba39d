"""Every call over scripted bytes: its request, and the use of its answer."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded, InvalidArgument, ShimError, Unavailable, Unsupported
from shim.engine.answers import DiscoveredDevice, EngineInfo, Runtime
from shim.engine.client import DockerEngine
from shim.engine.interface import Engine
from tests.engine.contract import WatchedScope
from tests.fakes.http_unix import CLOSE, HANG, ScriptedServer, response

ID = "a" * 64
V = "/v1.51"


def test_the_adapter_implements_the_protocol(adapter: DockerEngine) -> None:
    promised: Engine = adapter

    assert promised is adapter


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:2375", "/var/run/docker.sock", "unix://docker.sock", "npipe:////./pipe/x", ""]
)
def test_only_a_unix_socket_with_an_absolute_path_is_accepted(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match="unix:///path"):
        DockerEngine(endpoint, request_timeout=1)


# Requests

CALLS: dict[str, tuple[Callable[[DockerEngine], object], str, object]] = {
    "ping": (lambda e: e.ping(), f"GET {V}/_ping", b"OK"),
    "info": (lambda e: e.info(), f"GET {V}/info", {}),
    "create": (
        lambda e: e.create_container(name="n", body={"Image": "i"}),
        f"POST {V}/containers/create?name=n",
        {"Id": ID},
    ),
    "start": (lambda e: e.start_container(ID), f"POST {V}/containers/{ID}/start", None),
    "stop": (lambda e: e.stop_container(ID, grace=30), f"POST {V}/containers/{ID}/stop?t=30", None),
    "kill": (lambda e: e.kill_container(ID, signal="KILL"), f"POST {V}/containers/{ID}/kill?signal=KILL", None),
    "removed": (
        lambda e: e.wait_removed(ID),
        f"POST {V}/containers/{ID}/wait?condition=removed",
        {"StatusCode": 0, "Error": None},
    ),
    "remove": (
        lambda e: e.remove_container(ID),
        f"DELETE {V}/containers/{ID}?v=True&link=False&force=True",
        None,
    ),
    "update": (lambda e: e.update_container(ID, body={}), f"POST {V}/containers/{ID}/update", {"Warnings": None}),
    "inspect": (lambda e: e.inspect_container(ID), f"GET {V}/containers/{ID}/json", {"Id": ID}),
    "list": (
        lambda e: e.list_containers(),
        f"GET {V}/containers/json?all=1",
        [],
    ),
    "create exec": (lambda e: e.create_exec(ID, body={}), f"POST {V}/containers/{ID}/exec", {"Id": "x"}),
    "inspect exec": (lambda e: e.inspect_exec("x"), f"GET {V}/exec/x/json", {}),
    "list images": (lambda e: e.list_images(), f"GET {V}/images/json", []),
    "inspect image": (
        lambda e: e.inspect_image("a.b/c:1"),
        f"GET {V}/images/a.b/c:1/json?manifests=1",
        {"Id": "sha256:i"},
    ),
    "remove image": (lambda e: e.remove_image("a/b:1"), f"DELETE {V}/images/a/b:1?force=False&noprune=False", []),
}


@pytest.mark.parametrize(("call", "request_line", "answer"), CALLS.values(), ids=CALLS.keys())
def test_each_call_sends_one_request(
    adapter: DockerEngine,
    server: ScriptedServer,
    call: Callable[[DockerEngine], object],
    request_line: str,
    answer: object,
) -> None:
    server.on(request_line.partition("?")[0], response(200, answer))
    call(adapter)
    asked = [request for request in server.requests if request.line != "GET /version"]

    assert [f"{request.method} {request.target}" for request in asked] == [request_line]


def test_info_is_read_with_the_engines_keys(adapter: DockerEngine, server: ScriptedServer) -> None:
    """Most keys of answers are in PascalCase, but not all."""
    status = {"org.opencontainers.runtime-spec.features": "{}"}
    answer = {
        "ID": "i",
        "CgroupDriver": "systemd",
        "Runtimes": {"runc": {"path": "/bin/runc", "status": status}, "old": {"path": "old", "runtimeArgs": ["--x"]}},
        "CDISpecDirs": ["/etc/cdi"],
        "DiscoveredDevices": [{"Source": "cdi", "ID": "v.com/gpu=0"}],
    }
    server.on(f"GET {V}/info", response(200, answer))
    assert adapter.info() == EngineInfo(
        id="i",
        cgroup_driver="systemd",
        runtimes={"runc": Runtime(path="/bin/runc", status=status), "old": Runtime(path="old", runtime_args=["--x"])},
        cdi_spec_dirs=["/etc/cdi"],
        discovered_devices=[DiscoveredDevice(source="cdi", id="v.com/gpu=0")],
    )


def test_bodies_are_sent_unchanged(adapter: DockerEngine, server: ScriptedServer) -> None:
    body = {"Image": "i", "Labels": {"ä": "ö"}, "HostConfig": {"CpuShares": 2}}
    server.on(f"POST {V}/containers/create", response(201, {"Id": ID, "Warnings": []}))
    server.on(f"POST {V}/containers/{ID}/update", response(200, {}))

    assert adapter.create_container(name="n", body=body) == ID
    adapter.update_container(ID, body={"CpuShares": 2})

    *_, created, updated = server.requests
    assert msgspec.json.decode(created.body) == body
    assert updated.body == b'{"CpuShares":2}'
    assert created.headers["content-type"] == updated.headers["content-type"] == "application/json"
    assert created.headers["user-agent"].startswith("pydockershim/")


def test_dockers_warnings_are_logged(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"POST {V}/containers/create", response(201, {"Id": ID, "Warnings": ["no cpuset", "no swap"]}))
    server.on(f"POST {V}/containers/{ID}/update", response(200, {"Warnings": ["no shares"]}))

    with capture_logs() as logs:
        adapter.create_container(name="n", body={"Image": "i"})
        adapter.update_container(ID, body={})

    assert [(line["container"], line["warning"]) for line in logs] == [
        ("n", "no cpuset"),
        ("n", "no swap"),
        (ID, "no shares"),
    ]


def test_an_id_with_special_characters_is_quoted(adapter: DockerEngine, server: ScriptedServer) -> None:
    with pytest.raises(Unsupported, match="no such call"):
        adapter.update_container("../images/x?force=1 \r\n", body={})

    assert server.requests[-1].target == f"{V}/containers/..%2Fimages%2Fx%3Fforce%3D1%20%0D%0A/update"


@pytest.mark.parametrize("call", ["inspect_container", "start_container", "inspect_image"])
def test_an_empty_id_is_refused_without_a_request(adapter: DockerEngine, server: ScriptedServer, call: str) -> None:
    with pytest.raises(InvalidArgument, match="empty"):
        getattr(adapter, call)("")

    assert server.requests == []


def test_an_image_that_changes_meanwhile_is_read_again(adapter: DockerEngine, server: ScriptedServer) -> None:
    line = f"GET {V}/images/a.b/c:1/json"
    server.on(line, response(500, {"message": "consistency error: data changed during operation, retry"}))
    server.on(line, response(200, {"Id": "sha256:i"}))

    assert adapter.inspect_image("a.b/c:1").id == "sha256:i"


# Answers


def test_missing_fields_have_defaults(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"GET {V}/containers/{ID}/json", response(200, {"Id": ID, "Unknown": {"x": 1}}))
    seen = adapter.inspect_container(ID)

    assert (seen.id, seen.name, seen.state.status, seen.config.labels, seen.host_config.memory) == (ID, "", "", None, 0)


def test_null_counts_as_missing_at_every_depth(adapter: DockerEngine, server: ScriptedServer) -> None:
    answer = {
        "Id": ID,
        "Name": None,
        "State": {"Status": "running", "Pid": None, "OOMKilled": None},
        "Config": None,
        "HostConfig": {"CpuQuota": None, "PidsLimit": None, "NetworkMode": "none"},
    }
    server.on(f"GET {V}/containers/{ID}/json", response(200, answer))
    seen = adapter.inspect_container(ID)

    assert (seen.name, seen.state.status, seen.state.pid, seen.config.image) == ("", "running", 0, "")
    assert (seen.host_config.cpu_quota, seen.host_config.network_mode) == (0, "none")


@pytest.mark.parametrize(
    "answer",
    [b"not json", b'{"Name":"no id"}', b'{"Id":5}', b"[]", b""],
    ids=["no json", "no id", "wrong type", "list", "nothing"],
)
def test_an_unreadable_answer_is_an_error(adapter: DockerEngine, server: ScriptedServer, answer: bytes) -> None:
    server.on(f"GET {V}/containers/{ID}/json", response(200, answer))

    with pytest.raises(ShimError, match=f"inspect container {ID}: Docker's answer cannot be read"):
        adapter.inspect_container(ID)


@pytest.mark.parametrize("call", ["start_container", "stop_container"])
def test_repeated_starts_and_stops_are_no_errors(adapter: DockerEngine, server: ScriptedServer, call: str) -> None:
    server.on(f"POST {V}/containers/{ID}/{call.partition('_')[0]}", response(304))

    getattr(adapter, call)(ID, **({"grace": 1} if call == "stop_container" else {}))


def test_a_failed_removal_is_reported_to_its_waiters(adapter: DockerEngine, server: ScriptedServer) -> None:
    answer = {"StatusCode": -1, "Error": {"Message": "device or resource busy"}}
    server.on(f"POST {V}/containers/{ID}/wait", response(200, answer))

    with pytest.raises(ShimError, match=r"removal of container a+: device or resource busy"):
        adapter.wait_removed(ID)


def test_start_failures_keep_their_cause(adapter: DockerEngine, server: ScriptedServer) -> None:
    text = 'OCI runtime create failed: exec: "/nope": stat /nope: no such file or directory: unknown'
    server.on(f"POST {V}/containers/{ID}/start", response(400, {"message": text}))

    with pytest.raises(ShimError) as failed:
        adapter.start_container(ID)

    assert type(failed.value) is ShimError
    assert str(failed.value) == f'start container {ID}: exec: "/nope": stat /nope: no such file or directory'


# Deadlines and cancellation


def test_a_call_without_an_answer_times_out(impatient: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"GET {V}/containers/{ID}/json", HANG)

    with pytest.raises(DeadlineExceeded, match=rf"inspect container {ID}: Docker did not answer within 0.05 s"):
        impatient.inspect_container(ID)

    server.wait_hung_up()


def test_an_earlier_deadline_of_the_request_counts(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"GET {V}/containers/{ID}/json", HANG)
    assert adapter.api_version  # connect now, since only the next call has to be in time

    with deadline.bound(0.05), pytest.raises(DeadlineExceeded, match=r"the deadline of the request has passed"):
        adapter.inspect_container(ID)

    server.wait_hung_up()


def test_the_grace_period_is_added_to_the_timeout(impatient: DockerEngine, server: ScriptedServer) -> None:
    late = threading.Event()
    server.on(f"POST {V}/containers/{ID}/stop", late, response(204))
    threading.Timer(0.3, late.set).start()
    impatient.stop_container(ID, grace=60)

    assert late.is_set()


def test_waiting_for_a_removal_ignores_the_request_timeout(impatient: DockerEngine, server: ScriptedServer) -> None:
    late = threading.Event()
    server.on(f"POST {V}/containers/{ID}/wait", late, response(200, {"StatusCode": 0}))
    threading.Timer(0.3, late.set).start()
    impatient.wait_removed(ID)

    assert late.is_set()


def test_a_client_that_leaves_ends_the_call_at_once(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"POST {V}/containers/{ID}/start", HANG)
    scope = Scope()

    def leave() -> None:
        server.wait_requested(f"POST {V}/containers/{ID}/start")
        scope.cancel()

    with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
        pool.submit(leave)
        with pytest.raises(Cancelled, match=f"start container {ID}"):
            adapter.start_container(ID)
    server.wait_hung_up()


def test_a_client_that_leaves_before_the_first_answer_ends_the_call(
    adapter: DockerEngine, server: ScriptedServer
) -> None:
    server.on("GET /version", HANG)
    scope = Scope()

    def leave() -> None:
        server.wait_requested("GET /version")
        scope.cancel()

    with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
        pool.submit(leave)
        with pytest.raises(Cancelled, match="ping Docker"):
            adapter.ping()
    server.wait_hung_up()


@pytest.mark.parametrize("line", [f"GET {V}/events", f"POST {V}/exec/x/start"])
def test_a_stream_that_does_not_begin_times_out(impatient: DockerEngine, server: ScriptedServer, line: str) -> None:
    server.on(line, HANG)
    opened = impatient.start_exec("x") if "exec" in line else impatient.events(since=None)

    with pytest.raises(DeadlineExceeded, match=r"within 0.05 s"), opened:
        pytest.fail("it began")
    server.wait_hung_up()


def test_a_stream_times_out_if_docker_does_not_report_its_version(server: ScriptedServer) -> None:
    server.on("GET /version", HANG)
    engine = DockerEngine(f"unix://{server.path}", request_timeout=1)

    with pytest.raises(DeadlineExceeded, match=r"within 1 s"), engine.events(since=None):
        pytest.fail("it began")
    server.wait_hung_up()
    engine.close()


def test_a_slow_answer_times_out_between_its_pieces(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"GET {V}/containers/{ID}/json", response(200, {"Id": ID})[:-4], HANG)
    scope = WatchedScope()
    with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
        pool.submit(scope.cancel_once_waited_for)
        with pytest.raises(Cancelled):
            adapter.inspect_container(ID)


def test_a_late_cancellation_does_not_hit_the_next_call(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(f"GET {V}/containers/{ID}/json", response(200, {"Id": ID}))
    scope = KeepingScope()
    with deadline.entered(scope):
        adapter.inspect_container(ID)
    for wake in scope.wakers:
        wake()

    assert adapter.inspect_container(ID).id == ID
    assert len({request.connection for request in server.requests}) == 1


class KeepingScope(WatchedScope):
    """A scope that cancels too late, after the end of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.wakers: list[Callable[[], None]] = []

    def on_cancel(self, wake: Callable[[], None]):  # type: ignore[no-untyped-def]  # as in the base class
        self.wakers.append(wake)
        return super().on_cancel(wake)


# The connection to Docker


def test_without_a_socket_docker_is_unavailable(tmp_path: Path) -> None:
    engine = DockerEngine(f"unix://{tmp_path}/none.sock", request_timeout=1)

    with pytest.raises(Unavailable, match=rf"ping Docker: .*{tmp_path}/none.sock: no such file or directory"):
        engine.ping()


def test_a_socket_without_a_listener_is_unavailable(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.stop()
    server.path.touch()

    with pytest.raises(Unavailable, match="connection refused"):
        adapter.ping()


@pytest.mark.parametrize(
    "steps",
    [(CLOSE,), (response(200, {"Id": ID})[:-5], CLOSE), (b"HTTP/1.1 2", CLOSE), (b"\x00garbage\r\n\r\n",)],
    ids=["nothing", "half a body", "half a head", "garbage"],
)
def test_a_broken_answer_is_unavailable(
    adapter: DockerEngine, server: ScriptedServer, steps: tuple[bytes, ...]
) -> None:
    server.on(f"GET {V}/containers/{ID}/json", *steps)

    with pytest.raises(Unavailable, match=f"inspect container {ID}: Docker cannot be reached"):
        adapter.inspect_container(ID)
