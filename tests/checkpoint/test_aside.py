"""Checkpoints of a newer server: set aside by this server, and used again by the next newer server."""

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from shim.checkpoint import envelope
from shim.checkpoint.store import FILE_LIMIT, CheckpointStore, encode
from tests.checkpoint.samples import CONNECTED, ID, numbered
from tests.facts import mode_of
from tests.mounts import small_tmpfs

NEWER = replace(CONNECTED, runtime_handler="of-the-newer-server")
REBUILT = CONNECTED


def downgraded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """Open this version's store on the files of a newer server."""
    with monkeypatch.context() as newer:
        newer.setattr(envelope, "VERSION", 2)
        CheckpointStore(directory).put(NEWER)
    return CheckpointStore(directory)


def upgraded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    """Open the next version's store on the same directory."""
    monkeypatch.setattr(envelope, "VERSION", 2)
    return CheckpointStore(directory)


def names_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_newer_file_is_set_aside_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = downgraded(tmp_path, monkeypatch)
    assert store.all() == []
    assert names_below(tmp_path) == [f"newer/{ID}.json"]
    assert mode_of(tmp_path / "newer") == 0o700
    [found] = store.corrupt()
    assert found.path == tmp_path / "newer" / f"{ID}.json"
    assert found.reason == "its version 2 is newer than this server's version 1"


def test_only_the_version_of_a_newer_file_is_read(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.json").write_text('{"version": 7, "everything": "else"}')
    CheckpointStore(tmp_path)
    assert names_below(tmp_path) == [f"newer/{ID}.json"]


@pytest.mark.parametrize("rebuilt", [True, False])
def test_newer_file_is_restored_if_the_pod_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rebuilt: bool
) -> None:
    store = downgraded(tmp_path, monkeypatch)
    if rebuilt:
        store.put(REBUILT, rebuilt=True)
    assert CheckpointStore(tmp_path).get(ID) == (REBUILT if rebuilt else None)  # and after a restart of the older one
    assert upgraded(tmp_path, monkeypatch).get(ID) == NEWER
    assert names_below(tmp_path) == [f"{ID}.json"]


@pytest.mark.parametrize("change", ["put", "note", "delete"])
def test_newer_file_is_removed_with_a_change_of_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    store = downgraded(tmp_path, monkeypatch)
    store.put(REBUILT, rebuilt=True)
    if change == "delete":
        store.delete(ID)
    else:
        getattr(store, change)(replace(REBUILT, ready=False))
    assert names_below(tmp_path) == ([] if change == "delete" else [f"{ID}.json"])


def test_newer_file_of_a_pod_without_checkpoint_survives_its_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its addresses are not released yet, and only the newer server knows them."""
    store = downgraded(tmp_path, monkeypatch)
    store.delete(ID)
    assert upgraded(tmp_path, monkeypatch).get(ID) == NEWER


def test_damaged_newer_file_does_not_replace_a_good_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = downgraded(tmp_path, monkeypatch)
    store.put(REBUILT, rebuilt=True)
    aside = tmp_path / "newer" / f"{ID}.json"
    aside.write_bytes(aside.read_bytes()[:-3])
    content = json.loads((tmp_path / f"{ID}.json").read_bytes())
    upgraded(tmp_path, monkeypatch)
    kept = [path for path in tmp_path.rglob(f"{ID}.json*") if path != aside]
    assert [json.loads(path.read_bytes()) for path in kept] == [content]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("kind", "reason"), [("FIFO", "not a regular file"), ("large", f"more than {FILE_LIMIT} bytes")]
)
def test_too_large_newer_file_stays(tmp_path: Path, kind: str, reason: str) -> None:
    aside = tmp_path / "newer" / f"{ID}.json"
    aside.parent.mkdir()
    if kind == "FIFO":
        os.mkfifo(aside)
    else:
        aside.write_bytes(encode(CONNECTED))
        os.truncate(aside, FILE_LIMIT + 1)
    with capture_logs() as logs:
        assert CheckpointStore(tmp_path).all() == []
    assert [line["error"] for line in logs] == [reason]
    assert aside.exists()


def test_unmovable_newer_file_stays(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        CheckpointStore(small.path).put(numbered(1))
        path = small.path / f"{ID}.json"
        path.write_bytes(encode(CONNECTED).replace(b'"version":1', b'"version":2'))
        small.make_read_only()
        store = CheckpointStore(small.path)
        assert store.all() == [numbered(1)]
        [found] = store.corrupt()
        assert found.path == path
