"""The archive API over scripted bytes."""

import base64
import json

import pytest

from shim.domain.errors import NotFound, ShimError, Unavailable
from shim.engine.answers import PathKind, PathStat
from shim.engine.client import DockerEngine
from tests.fakes.http_unix import CLOSE, ScriptedServer, chunk, chunked, response

ID = "a" * 64
PATH = "/etc/pass wd"
HEAD = f"HEAD /v1.51/containers/{ID}/archive"
GET = f"GET /v1.51/containers/{ID}/archive"
INSPECT = f"GET /v1.51/containers/{ID}/json"


def reported(**stat: object) -> bytes:
    header = base64.b64encode(json.dumps(stat).encode()).decode()
    return response(200, headers=[f"X-Docker-Container-Path-Stat: {header}"])


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (0o644, PathKind.FILE),
        (0o4755 | 1 << 23, PathKind.FILE),  # setuid
        (0x800001ED, PathKind.DIRECTORY),
        (0x80100000 | 0o1777, PathKind.DIRECTORY),  # sticky
        (0x080001FF, PathKind.LINK),
        (0x02000000, PathKind.OTHER),
        (0x01000000, PathKind.OTHER),
        (0x04000000, PathKind.OTHER),
        (0x04200000, PathKind.OTHER),
        (0x00080000, PathKind.OTHER),
    ],
    ids=["file", "setuid", "directory", "sticky", "link", "fifo", "socket", "device", "chardevice", "irregular"],
)
def test_a_kind_is_read_from_gos_mode(adapter: DockerEngine, server: ScriptedServer, mode: int, kind: PathKind) -> None:
    server.on(HEAD, reported(name="passwd", size=7, mode=mode, mtime="2024-01-01T00:00:00Z", linkTarget="/x"))
    seen = adapter.stat_path(ID, PATH)

    assert seen == PathStat(size=7, mode=mode, link_target="/x")
    assert seen.kind is kind
    assert server.requests[-1].target.endswith("/archive?path=%2Fetc%2Fpass+wd")


def test_a_missing_path_in_an_existing_container_is_none(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(HEAD, response(404))
    server.on(INSPECT, response(200, {"Id": ID}))

    assert adapter.stat_path(ID, PATH) is None


def test_a_missing_container_is_not_a_missing_path(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(HEAD, response(404))
    server.on(INSPECT, response(404, {"message": f"No such container: {ID}"}))

    with pytest.raises(NotFound, match=f"read {PATH} in container {ID}: No such container"):
        adapter.stat_path(ID, PATH)


def test_the_reason_of_a_failed_stat_is_requested(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(HEAD, response(500))
    server.on(GET, response(500, {"message": "lstat /etc/passwd: not a directory"}))

    with pytest.raises(ShimError, match=f"read {PATH} in container {ID}: lstat /etc/passwd: not a directory"):
        adapter.stat_path(ID, PATH)


def test_a_failure_without_a_reason_is_still_raised(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(HEAD, response(500))
    server.on(GET, response(200, b"archive"))

    with pytest.raises(ShimError, match=f"read {PATH} in container {ID}: no reason given"):
        adapter.stat_path(ID, PATH)


@pytest.mark.parametrize("header", ["", "X-Docker-Container-Path-Stat: %", "X-Docker-Container-Path-Stat: bm8="])
def test_an_answer_without_a_stat_header_is_an_error(
    adapter: DockerEngine, server: ScriptedServer, header: str
) -> None:
    server.on(HEAD, response(200, headers=[header] if header else []))

    with pytest.raises(ShimError, match="Docker's answer cannot be read"):
        adapter.stat_path(ID, PATH)


def test_an_archive_comes_in_pieces(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(GET, chunked() + chunk(b"one"), chunk(b"two") + chunk(b""))

    with adapter.archive(ID, PATH) as pieces:
        assert b"".join(pieces) == b"onetwo"


def test_an_archive_that_breaks_off_is_an_error(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(GET, chunked() + chunk(b"one"), CLOSE)

    with adapter.archive(ID, PATH) as pieces, pytest.raises(Unavailable):
        list(pieces)


def test_the_archive_of_a_missing_path_is_not_found(adapter: DockerEngine, server: ScriptedServer) -> None:
    server.on(GET, response(404, {"message": f"Could not find the file {PATH} in container {ID}"}))

    with pytest.raises(NotFound, match="Could not find the file"), adapter.archive(ID, PATH):
        pytest.fail("it was read")
