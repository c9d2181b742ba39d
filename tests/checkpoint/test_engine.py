"""Docker's last known facts survive a restart, and an invalid file does not prevent the start."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shim.checkpoint.engine import FILE_LIMIT, EngineStore
from shim.checkpoint.envelope import seal
from tests.facts import mode_of
from tests.mounts import small_tmpfs

GOOD = b'{"server_version":"28.5.2","cgroup_driver":"systemd"}'


def test_kept_facts_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    store = EngineStore(path)
    assert (store.server_version, store.cgroup_driver) == ("", "")
    store.keep(server_version="28.5.2", cgroup_driver="systemd")
    for either in (store, EngineStore(path)):
        assert (either.server_version, either.cgroup_driver) == ("28.5.2", "systemd")
    assert mode_of(path) == 0o600


def test_equal_facts_are_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    store = EngineStore(path)
    store.keep(server_version="28.5.2", cgroup_driver="systemd")
    before = path.stat().st_ino
    store.keep(server_version="28.5.2", cgroup_driver="systemd")
    assert path.stat().st_ino == before
    store.keep(server_version="28.5.3", cgroup_driver="systemd")
    assert path.stat().st_ino != before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (seal(GOOD)[:-5], "truncated"),
        (seal(GOOD).replace(b"28.5.2", b"99.5.2"), "checksum"),
        (seal(GOOD).replace(b'"version":1', b'"version":2'), "its version 2 is not 1"),
        (seal(b'{"server_version":7}'), "str"),
        (bytes(50), "malformed"),
    ],
    ids=["empty", "cut short", "altered", "newer", "another shape", "zeros"],
)
def test_untrusted_file_is_logged_ignored_and_replaced(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        store = EngineStore(path)
    assert store.server_version == ""
    (line,) = logs
    assert (line["log_level"], line["file"]) == ("warning", str(path))
    assert reason in line["error"]
    store.keep(server_version="28.5.2", cgroup_driver="systemd")
    assert EngineStore(path).server_version == "28.5.2"


def test_missing_file_is_logged(tmp_path: Path) -> None:
    with capture_logs() as logs:
        EngineStore(tmp_path / "engine.json")
    assert [(line["log_level"], line["file"]) for line in logs] == [("info", str(tmp_path / "engine.json"))]


def test_a_file_that_cannot_be_read_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "engine.json").mkdir()
    with capture_logs() as logs:
        assert EngineStore(tmp_path / "engine.json").server_version == ""
    assert [(line["log_level"], line["error"]) for line in logs] == [("warning", "not a regular file")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("device", ["/dev/zero", "FIFO"])
def test_endless_file_is_ignored(tmp_path: Path, device: str) -> None:
    path = tmp_path / "engine.json"
    if device == "FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(device)
    with capture_logs() as logs:
        assert EngineStore(path).server_version == ""
    assert [(line["log_level"], line["error"]) for line in logs] == [("warning", "not a regular file")]


def test_a_file_that_is_too_large_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_bytes(seal(b'{"server_version":"%s"}' % (b"x" * FILE_LIMIT)))
    with capture_logs() as logs:
        assert EngineStore(path).server_version == ""
    assert [line["error"] for line in logs] == [f"more than {FILE_LIMIT} bytes"]


def test_unwritable_facts_count_and_are_logged_once(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        store = EngineStore(small.path / "engine.json")
        small.make_read_only()
        with capture_logs() as logs:
            for _ in range(3):
                store.keep(server_version="28.5.2", cgroup_driver="systemd")
        assert store.server_version == "28.5.2"
    assert [line["log_level"] for line in logs] == ["warning"]
    assert "read-only file system" in logs[0]["error"]
