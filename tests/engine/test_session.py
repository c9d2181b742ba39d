import json
from pathlib import Path

import pytest

from shim.engine.failures import Refused
from shim.engine.pool import Pool
from shim.engine.session import DockerSession
from tests.fakes.http_unix import ScriptedServer, response


def test_the_sdks_methods_read_replies(session: DockerSession, server: ScriptedServer) -> None:
    server.on("GET /v1.51/info", response(200, {"ID": "ä"}))
    server.on("GET /v1.51/_ping", response(200, b"OK"))

    assert session.info() == {"ID": "ä"}
    assert session.ping() is True


def test_every_error_status_is_refused(session: DockerSession, server: ScriptedServer) -> None:
    server.on("GET /v1.51/info", response(418, {"message": "a teapot"}))

    with pytest.raises(Refused, match=r"a teapot \(status 418\)") as failed:
        session.info()

    assert (failed.value.status, failed.value.message) == (418, "a teapot")


def test_none_parameters_are_omitted_and_others_are_quoted(session: DockerSession, server: ScriptedServer) -> None:
    server.on("GET /v1.51/x", response(200, {}))
    session.request("GET", "/x", params={"a": None, "b": "c d&e", "f": 0})

    assert server.requests[-1].target == "/v1.51/x?b=c+d%26e&f=0"


def test_settings_of_the_docker_command_line_are_ignored(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"HttpHeaders": {"X-Meta": "secret"}, "auths": {"a.b": {"auth": "dTpw"}}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    server.on("GET /v1.51/info", response(200, {}))
    pool = Pool(str(server.path))
    DockerSession(pool, timeout=10).info()
    pool.close()

    assert "x-meta" not in server.requests[-1].headers
