"""Connections and versions, over scripted bytes."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, FailedPrecondition, Unavailable
from shim.engine import pool as module
from shim.engine.client import DockerEngine
from shim.engine.pool import MAX_IDLE, choose_version
from tests.fakes.http_unix import CLOSE, HANG, ScriptedServer, chunk, chunked, response
from tests.waits import wait_until


@pytest.mark.parametrize(
    ("newest", "minimum", "chosen"),
    [
        ("1.41", "1.12", (1, 41)),
        ("1.51", "1.24", (1, 51)),
        ("1.52", "1.44", (1, 51)),
        ("1.100", "1.51", (1, 51)),
        ("1.43", "", (1, 43)),
        ("2.0", "1.44", (1, 51)),
    ],
)
def test_the_newest_common_version_is_used(newest: str, minimum: str, chosen: tuple[int, int]) -> None:
    assert choose_version(newest, minimum=minimum) == chosen


@pytest.mark.parametrize(
    ("newest", "minimum", "says"),
    [
        ("1.40", "1.12", "API version 1.40, at least 1.41"),
        ("1.9", "", "API version 1.9, at least 1.41"),
        ("1.60", "1.52", r"no API version below 1.52 \(its min-api-version\), this server speaks at most 1.51"),
        ("", "", "''"),
        ("newest", "", "'newest'"),
    ],
)
def test_an_engine_without_a_common_version_is_refused(newest: str, minimum: str, says: str) -> None:
    with pytest.raises(FailedPrecondition, match=says):
        choose_version(newest, minimum=minimum)


def test_the_version_is_negotiated_once(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.api_version = "1.43"
    server.on("GET /v1.43/_ping", response(200, b"OK"))
    for _ in range(3):
        adapter.ping()

    assert adapter.api_version == (1, 43)
    assert [request.line for request in server.requests] == ["GET /version", *["GET /v1.43/_ping"] * 3]
    assert {request.connection for request in server.requests} == {1}


def test_an_engine_that_is_too_old_is_refused(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.api_version = "1.40"

    with pytest.raises(FailedPrecondition, match=r"1\.40.*20\.10"):
        _ = adapter.api_version
    with pytest.raises(FailedPrecondition, match=r"1\.40"):
        adapter.ping()


@pytest.mark.parametrize(
    ("status", "answer", "says"),
    [(200, b"<html>", "not a Docker Engine"), (200, b"[]", "not a Docker Engine"), (404, b"no page", "no page")],
    ids=["no json", "no object", "not found"],
)
def test_another_server_behind_the_socket_is_unavailable(
    adapter: DockerEngine, server: ScriptedServer, status: int, answer: bytes, says: str
) -> None:
    server.on("GET /version", response(status, answer))

    with pytest.raises(Unavailable, match=f"inspect container a: Docker cannot be reached: .*{says}"):
        adapter.inspect_container("a")


def test_a_refused_version_leads_to_another_negotiation(adapter: DockerEngine, server: ScriptedServer) -> None:
    refusal = {"message": "client version 1.51 is too new. Maximum supported API version is 1.41"}
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    server.on("GET /v1.51/info", response(400, refusal))
    server.on("GET /v1.41/_ping", response(200, b"OK"))
    adapter.ping()
    server.api_version = "1.41"
    with pytest.raises(Unavailable, match="too new"):
        adapter.info()
    adapter.ping()

    assert adapter.api_version == (1, 41)


def test_the_version_is_negotiated_again_after_a_restart(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    server.on("GET /v1.41/_ping", response(200, b"OK"))
    adapter.ping()
    server.restart(api_version="1.41")
    adapter.ping()
    assert adapter.api_version == (1, 41)
    server.restart(api_version="1.51")
    adapter.ping()

    assert adapter.api_version == (1, 51)


def test_the_version_is_negotiated_again_after_a_lost_call(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on("GET /v1.51/_ping", CLOSE)
    server.on("GET /v1.41/_ping", response(200, b"OK"))
    with pytest.raises(Unavailable):
        adapter.ping()
    server.restart(api_version="1.41")
    adapter.ping()

    assert adapter.api_version == (1, 41)


def test_the_version_is_negotiated_again_without_open_connections(
    adapter: DockerEngine, server: ScriptedServer
) -> None:
    server.on("GET /v1.51/_ping", response(200, b"OK", headers=["Connection: close"]))
    server.on("GET /v1.41/_ping", response(200, b"OK"))
    adapter.ping()
    server.restart(api_version="1.41")
    adapter.ping()

    assert adapter.api_version == (1, 41)


def test_answered_at_is_reset_when_the_daemon_is_lost(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on("GET /v1.51/_ping", response(200, b"OK"), CLOSE)
    adapter.ping()
    assert adapter.answered_at > -math.inf
    server.stop()
    with pytest.raises(Unavailable):
        adapter.ping()
    assert adapter.answered_at == -math.inf


def test_the_api_version_of_an_open_connection_is_no_answer(adapter: DockerEngine, server: ScriptedServer) -> None:
    """Docker hangs, and its connections are open: Status must not report it as ready for what RPCs look up."""
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    adapter.ping()
    answered = adapter.answered_at
    assert adapter.api_version == (1, 51)
    assert adapter.answered_at == answered


@pytest.mark.parametrize("end", [chunk(b""), CLOSE], ids=["ends", "breaks off"])
def test_answered_at_is_reset_when_events_end(adapter: DockerEngine, server: ScriptedServer, end: Any) -> None:
    """Docker is stopped, or crashes: its earlier answers must not make Status report it as ready."""
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    server.on("GET /v1.51/events", chunked(), end)
    adapter.ping()
    with adapter.events(since=None) as events, pytest.raises(Unavailable):
        list(events)
    assert adapter.answered_at == -math.inf


def test_a_further_connection_does_not_negotiate(adapter: DockerEngine, server: ScriptedServer) -> None:
    go_on = threading.Event()
    server.on("GET /v1.51/containers/a/json", go_on, response(200, {"Id": "a"}))
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(adapter.inspect_container, "a")
        server.wait_requested("GET /v1.51/containers/a/json")
        adapter.ping()
        go_on.set()
        waiting.result(10)

    assert server.times("GET /version") == 1
    assert server.requests[-1].connection == 2


def test_a_client_that_leaves_keeps_the_version(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    server.on("GET /v1.51/info", HANG)
    scope = Scope()

    def leave() -> None:
        server.wait_requested("GET /v1.51/info")
        adapter.ping()
        scope.cancel()

    with ThreadPoolExecutor(1) as pool, deadline.entered(scope):
        pool.submit(leave)
        with pytest.raises(Cancelled):
            adapter.info()
    adapter.ping()

    assert server.times("GET /version") == 1


def test_concurrent_calls_have_separate_connections(adapter: DockerEngine, server: ScriptedServer) -> None:
    calls = MAX_IDLE + 8
    go_on = threading.Event()
    server.on("GET /v1.51/containers/a/json", go_on, response(200, {"Id": "a"}))
    with ThreadPoolExecutor(calls) as pool:
        waiting = [pool.submit(adapter.inspect_container, "a") for _ in range(calls)]
        server.wait_requested("GET /v1.51/containers/a/json", calls)
        go_on.set()
        assert {call.result(10).id for call in waiting} == {"a"}


def test_idle_connections_are_closed(
    adapter: DockerEngine, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    go_on = threading.Event()
    server.on("GET /v1.51/containers/a/json", go_on, response(200, {"Id": "a"}))
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(adapter.inspect_container, "a") for _ in range(8)]
        server.wait_requested("GET /v1.51/containers/a/json", 8)
        go_on.set()
        for call in waiting:
            call.result(10)
    assert adapter._pool._open == 8

    def only_one_left() -> bool:
        adapter.ping()
        return adapter._pool._open == 1

    wait_until(only_one_left)


def test_a_connection_closed_by_the_engine_is_not_reused(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on("GET /v1.51/_ping", response(200, b"OK", headers=["Connection: close"]))
    adapter.ping()
    adapter.ping()

    assert [request.connection for request in server.requests if request.line != "GET /version"] == [1, 2]


def test_a_call_that_ends_after_close_closes_its_connection(adapter: DockerEngine, server: ScriptedServer) -> None:
    go_on = threading.Event()
    server.on("GET /v1.51/containers/a/json", go_on, response(200, {"Id": "a"}), HANG)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(adapter.inspect_container, "a")
        server.wait_requested("GET /v1.51/containers/a/json")
        adapter.close()
        go_on.set()
        waiting.result(10)
    server.wait_hung_up()


def test_an_abandoned_response_delays_no_call_and_ends_with_the_adapter(
    adapter: DockerEngine, server: ScriptedServer
) -> None:
    server.on("GET /v1.51/_ping", response(200, b"OK"))
    server.on("POST /v1.51/images/create", chunked(), chunk(b'{"status":"Status: Image is up to date"}\n'), HANG)
    adapter.ping()
    adapter.pull_image("a/b:1", auth=None, progress=lambda _: None)
    for _ in range(3):
        adapter.ping()
    assert [request.connection for request in server.requests if request.line.endswith("_ping")] == [1, 2, 2, 2]
    adapter.close()
    server.wait_hung_up()
