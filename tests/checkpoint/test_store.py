"""Checkpoints on real disks: writing, reading, and the handling of untrusted files."""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from shim.base.gather import gather
from shim.checkpoint.envelope import Untrusted
from shim.checkpoint.model import SandboxCheckpoint
from shim.checkpoint.store import FILE_LIMIT, CheckpointStore, decode, encode
from shim.domain.errors import InvalidArgument, ResourceExhausted, ShimError
from tests.checkpoint.samples import BEFORE_ADD, CONNECTED, HOST_NETWORK, ID, RELEASED, numbered
from tests.facts import mode_of
from tests.mounts import small_tmpfs

GOOD = encode(CONNECTED)
SAMPLES = {
    "before ADD": BEFORE_ADD,
    "connected": CONNECTED,
    "released": RELEASED,
    "host network": HOST_NETWORK,
}


def enveloped(data: object, *, version: object = 1) -> bytes:
    """Return a file with `data` and the right checksum."""
    text = json.dumps(data)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"version": version, "checksum": checksum, "data": data}).encode()


def plain(checkpoint: SandboxCheckpoint) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(checkpoint)
    return found


@pytest.mark.parametrize("checkpoint", SAMPLES.values(), ids=SAMPLES)
def test_checkpoint_is_kept_over_a_restart(tmp_path: Path, checkpoint: SandboxCheckpoint) -> None:
    store = CheckpointStore(tmp_path / "sandboxes")
    store.put(checkpoint)
    for either in (store, CheckpointStore(tmp_path / "sandboxes")):
        assert either.get(ID) == checkpoint
        assert either.all() == [checkpoint]
        assert either.corrupt() == []


def test_later_put_replaces_the_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.put(BEFORE_ADD)
    store.put(CONNECTED)
    assert store.all() == CheckpointStore(tmp_path).all() == [CONNECTED]


def test_the_file_is_private_and_as_documented(tmp_path: Path) -> None:
    directory = tmp_path / "sandboxes"
    directory.mkdir(mode=0o755)
    CheckpointStore(directory).put(CONNECTED)
    [path] = directory.iterdir()
    assert path.name == f"{ID}.json"
    assert (mode_of(directory), mode_of(path)) == (0o700, 0o600)
    content = json.loads(path.read_text())
    assert list(content) == ["version", "checksum", "data"]
    assert content["version"] == 1
    canonical = json.dumps(content["data"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert content["checksum"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert content["data"]["network"]["args"][1] == ["K8S_POD_NAME", "web"]


def test_fields_of_a_newer_server_are_skipped(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.json").write_bytes(enveloped({**plain(CONNECTED), "from_the_future": 1}))
    assert CheckpointStore(tmp_path).get(ID) == CONNECTED


def test_unknown_sandbox_has_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    assert store.get(ID) is None
    assert store.get("../../etc/passwd") is None
    assert store.all() == []


def test_delete_forgets_and_can_be_repeated(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.put(CONNECTED)
    store.put(numbered(1))
    store.delete(ID)
    store.delete(ID)
    assert store.get(ID) is None
    assert store.all() == CheckpointStore(tmp_path).all() == [numbered(1)]


def test_state_directory_may_be_cleared_externally(tmp_path: Path) -> None:
    directory = tmp_path / "sandboxes"
    store = CheckpointStore(directory)
    store.put(CONNECTED)
    (directory / f"{ID}.json").unlink()
    directory.rmdir()
    store.delete(ID)
    assert store.get(ID) is None
    store.put(numbered(1))
    assert CheckpointStore(directory).all() == [numbered(1)]


@pytest.mark.parametrize("sandbox_id", ["", "..", "../x", "a/b", ".hidden", "a\0b", "a" * 129, "ä", "a\n"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, sandbox_id: str) -> None:
    directory = tmp_path / "sandboxes"
    store = CheckpointStore(directory)
    with pytest.raises(InvalidArgument, match="cannot name a checkpoint file"):
        store.put(replace(CONNECTED, sandbox_id=sandbox_id))
    with pytest.raises(InvalidArgument, match="cannot name a checkpoint file"):
        store.delete(sandbox_id)
    assert list(tmp_path.rglob("*")) == [directory]


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "make",  # called by the test: each worker collects, and the deep list takes a second
    [lambda: "\ud800", object, lambda: nested(1_000_000)],
    ids=["lone surrogate", "no JSON type", "too deep"],
)
def test_content_that_json_cannot_hold_is_refused(tmp_path: Path, make: Callable[[], object]) -> None:
    store = CheckpointStore(tmp_path)
    store.put(CONNECTED)
    with pytest.raises(InvalidArgument, match=f"write the checkpoint of sandbox {ID}: "):
        store.put(replace(CONNECTED, config={"value": make()}))
    assert store.all() == CheckpointStore(tmp_path).all() == [CONNECTED]


def test_every_truncation_is_noticed() -> None:
    for length in range(len(GOOD)):
        with pytest.raises(Untrusted):
            decode(GOOD[:length], sandbox_id=ID)


def test_every_flipped_bit_is_noticed() -> None:
    for offset in range(len(GOOD)):
        for bit in range(8):
            damaged = bytearray(GOOD)
            damaged[offset] ^= 1 << bit
            with pytest.raises(Untrusted):
                decode(bytes(damaged), sandbox_id=ID)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_as_untrusted(content: bytes) -> None:
    with pytest.raises(Untrusted):
        decode(content, sandbox_id=ID)


@given(st.integers(0, len(GOOD)), st.integers(0, len(GOOD)), st.binary(max_size=20))
@example(0, 0, b"\t")
def test_a_part_that_was_overwritten_is_noticed_or_means_nothing(start: int, length: int, other: bytes) -> None:
    damaged = GOOD[:start] + other + GOOD[start + length :]
    try:
        found = decode(damaged, sandbox_id=ID)
    except Untrusted:
        return
    assert found == CONNECTED  # white space, and the same bytes again


def written(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


CORRUPT: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (written(b""), "truncated"),
    "zeros after a power cut": (written(bytes(len(GOOD))), "malformed"),
    "truncated": (written(GOOD[:-20]), "truncated"),
    "two in one": (written(GOOD + GOOD), "malformed"),
    "other data": (written(GOOD.replace(b"10.1.0.7", b"10.1.0.8")), "its checksum does not match"),
    "not text": (written(GOOD.replace(b"web", b"\xff\xfe\xfd")), "."),
    "no object": (written(b"[]"), "Expected `object`"),
    "no version": (written(GOOD.replace(b'"version":1,', b"")), "missing required field `version`"),
    "version 0": (written(enveloped({}, version=0)), "its version 0 is not 1"),
    "version 2": (written(b'{"version": 2, "everything": "else"}'), "its version 2 is not 1, which this server reads"),
    "version of a wrong type": (written(enveloped({}, version="v1")), "version"),
    "no field": (written(enveloped({})), "missing required field"),
    "null": (written(enveloped(None)), "Expected `object`, got `null`"),
    "too deep": (written(b'{"version":1,"data":' + b"[" * 1_000_000), "recursion|Stack overflow"),
    "another sandbox's": (written(encode(numbered(7))), f"it is the checkpoint of sandbox '{7:064x}'"),
    "a directory": (Path.mkdir, "not a regular file"),
    "a dangling link": (lambda path: path.symlink_to("/nonexistent"), "no such file or directory"),
}


def wrong_type(field: str, value: object) -> bytes:
    data = plain(CONNECTED)
    *outer, last = field.split(".")
    inner = data
    for name in outer:
        inner = inner[name]
    inner[last] = value
    return enveloped(data)


WRONG_TYPES = {
    "config": [],
    "runtime_handler": None,
    "created_at": "yesterday",
    "ready": 1,
    "network": "none",
    "network.conflist": "[]",
    "network.netns": None,
    "network.args": [["a"]],
    "network.capabilities": None,
    "network.result": [],
    "network.released": "yes",
}


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    f"{field} of a wrong type": (written(wrong_type(field, value)), field.rpartition(".")[2])
    for field, value in WRONG_TYPES.items()
}


@pytest.mark.parametrize(("make", "reason"), (CORRUPT | WRONG).values(), ids=CORRUPT | WRONG)
def test_untrusted_file_is_set_aside(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    CheckpointStore(tmp_path).put(numbered(1))
    path = tmp_path / f"{ID}.json"
    make(path)
    inode = path.lstat().st_ino
    with capture_logs() as logs:
        store = CheckpointStore(tmp_path)

    [found] = store.corrupt()
    assert found.sandbox_id == ID
    assert found.path == tmp_path / "corrupt" / f"{ID}.json.corrupt-1"
    assert found.path.lstat().st_ino == inode
    assert mode_of(found.path.parent) == 0o700
    assert re.search(reason, found.reason)
    assert str(found) == f"{found.path}: {found.reason}"
    assert [(line["log_level"], line["sandbox"], line["reason"]) for line in logs] == [("error", ID, found.reason)]

    assert store.all() == [numbered(1)]
    store.delete(ID)
    store.put(CONNECTED)
    again = CheckpointStore(tmp_path)
    assert again.get(ID) == CONNECTED
    assert again.corrupt() == []


def test_files_set_aside_are_not_overwritten(tmp_path: Path) -> None:
    targets = ["/nonexistent/first", "/nonexistent/second", "/nonexistent/third"]
    for target in targets:
        (tmp_path / f"{ID}.json").symlink_to(target)
        CheckpointStore(tmp_path)
    kept = {path.name: str(path.readlink()) for path in (tmp_path / "corrupt").iterdir()}
    assert kept == {f"{ID}.json.corrupt-{number}": target for number, target in enumerate(targets, start=1)}


def test_file_that_cannot_be_set_aside_is_reported(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        CheckpointStore(small.path).put(numbered(1))
        path = small.path / f"{ID}.json"
        path.write_text("broken")
        small.make_read_only()
        store = CheckpointStore(small.path)
        assert store.all() == [numbered(1)]
        [found] = store.corrupt()
        assert found.path == path
        assert found.reason.endswith("; and it could not be set aside: read-only file system")


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = tmp_path / "file" / "sandboxes"
    with pytest.raises(ShimError, match=f"create the directory {directory}: not a directory"):
        CheckpointStore(directory)


def test_temporary_files_are_removed_and_other_files_kept(tmp_path: Path) -> None:
    (tmp_path / f".{ID}.json.0123abcd.tmp").write_bytes(GOOD[:99])
    (tmp_path / "README").touch()
    store = CheckpointStore(tmp_path)
    assert store.corrupt() == []
    assert [path.name for path in tmp_path.iterdir()] == ["README"]


def test_full_disk_is_an_error_and_the_checkpoint_stays(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        store = CheckpointStore(small.path)
        store.put(BEFORE_ADD)
        small.fill()
        with pytest.raises(ResourceExhausted, match=f"write {small.path}/{ID}.json: no space left on device"):
            store.put(CONNECTED)
        assert store.all() == CheckpointStore(small.path).all() == [BEFORE_ADD]
        store.delete(ID)
        assert store.all() == []
        (small.path / "filler").unlink()
        store.put(CONNECTED)
        assert CheckpointStore(small.path).all() == [CONNECTED]


def test_read_only_disk_is_an_error_and_nothing_is_forgotten(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        store = CheckpointStore(small.path)
        store.put(CONNECTED)
        small.make_read_only()
        with pytest.raises(ShimError, match=f"write {small.path}/{ID}.json: read-only file system"):
            store.put(RELEASED)
        with pytest.raises(ShimError, match=f"remove {small.path}/{ID}.json: read-only file system"):
            store.delete(ID)
        assert store.all() == [CONNECTED]


def test_sandboxes_wait_for_the_disk_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    both = threading.Barrier(2)
    fsync = os.fsync

    def fsync_together(descriptor: int) -> None:
        both.wait(timeout=30)  # breaks when the other write does not get here
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_together)
    gather([partial(store.put, numbered(1)), partial(store.put, numbered(2))])
    monkeypatch.undo()
    assert len(CheckpointStore(tmp_path).all()) == 2


def test_memory_and_disk_agree_after_concurrent_writes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    def write(worker: int) -> None:
        for turn in range(10):
            store.put(numbered(turn % 3, attempt=worker))
            if turn % 4 == worker % 4:
                store.delete(numbered(turn % 3).sandbox_id)

    gather([partial(write, worker) for worker in range(8)])
    again = CheckpointStore(tmp_path)
    for number in range(3):
        sandbox_id = numbered(number).sandbox_id
        assert again.get(sandbox_id) == store.get(sandbox_id)
    assert again.corrupt() == []


WRITE_UNTIL_KILLED = """
import itertools, sys
from pathlib import Path
from shim.checkpoint.store import CheckpointStore
from tests.checkpoint.samples import numbered
store = CheckpointStore(Path(sys.argv[1]))
for attempt in itertools.count():
    store.put(numbered(1, attempt=attempt))
    print(attempt, flush=True)
"""


@pytest.mark.parametrize("lines", [1, 57, 200])
def test_acknowledged_writes_survive_a_kill(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(lines):
            writer.stdout.readline()
        writer.kill()
        rest = writer.stdout.read().split()
    acknowledged = lines - 1 + len(rest)
    store = CheckpointStore(tmp_path)
    [checkpoint] = store.all()
    assert store.corrupt() == []
    assert checkpoint.config["metadata"]["attempt"] in (acknowledged, acknowledged + 1)
    assert [path.name for path in tmp_path.iterdir()] == [f"{1:064x}.json"]


def test_a_checkpoint_that_is_too_large_is_refused_and_not_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    large = replace(BEFORE_ADD, config={"annotations": {"a": "x" * FILE_LIMIT}})
    with pytest.raises(InvalidArgument, match=f"checkpoint of sandbox {ID}: [0-9]+ bytes, the limit is {FILE_LIMIT}"):
        store.put(large)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / f"{ID}.json").write_bytes(b" " * (FILE_LIMIT + 1))
    assert [found.reason for found in CheckpointStore(tmp_path).corrupt()] == [f"more than {FILE_LIMIT} bytes"]
