from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.checkpoint import envelope
from shim.checkpoint.limits import FILE_LIMIT, LimitStore, encode
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError

ID, OTHER = "c" * 64, "d" * 64
LIMITS = pb.LinuxContainerResources(
    memory_limit_in_bytes=4 << 20,
    unified={"memory.high": "1048576"},
    hugepage_limits=[pb.HugepageLimit(page_size="2MB", limit=1 << 21)],
)


def test_limits_are_kept_over_a_restart(tmp_path: Path) -> None:
    store = LimitStore(tmp_path / "limits")
    store.put(ID, LIMITS)
    for either in (store, LimitStore(tmp_path / "limits")):
        assert either.get(ID) == LIMITS
        assert either.get(OTHER) is None
        either.check(ID)


def test_limits_can_be_deleted_by_none(tmp_path: Path) -> None:
    store = LimitStore(tmp_path)
    store.put(ID, LIMITS)
    store.put(ID, None)
    store.put(OTHER, None)
    assert store.get(ID) is None
    assert list(tmp_path.iterdir()) == []


def test_limits_of_removed_containers_are_deleted(tmp_path: Path) -> None:
    store = LimitStore(tmp_path)
    store.put(ID, LIMITS)
    store.put(OTHER, LIMITS)
    store.keep_only({ID})
    assert [path.name for path in tmp_path.iterdir()] == [f"{ID}.json"]
    store.delete(ID)
    assert LimitStore(tmp_path).get(ID) is None


def test_undeletable_file_does_not_block_others(tmp_path: Path) -> None:
    for name in ("ABC", "a-b", "Z"):
        (tmp_path / f"{name}.json").write_text("{")
    LimitStore(tmp_path).put(ID, LIMITS)
    LimitStore(tmp_path).keep_only(())
    assert {path.name for path in tmp_path.iterdir()} == {"ABC.json", "a-b.json", "Z.json"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated"),
        (encode(ID, LIMITS)[:-9], "truncated"),
        (encode(ID, LIMITS).replace(b"1048576", b"9048576"), "checksum"),
        (encode(OTHER, LIMITS), f"of container '{OTHER}'"),
    ],
    ids=["empty", "cut short", "altered", "another's"],
)
def test_damaged_file_blocks_its_container_until_removed(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / f"{ID}.json").write_bytes(content)
    store = LimitStore(tmp_path)
    assert store.get(ID) is None
    with pytest.raises(FailedPrecondition, match=rf"limits of container {ID} are lost: .*{reason}"):
        store.check(ID)
    store.delete(ID)
    store.check(ID)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LimitStore(tmp_path)
    store.put(ID, LIMITS)

    def full(*_args: object, **_kwargs: object) -> None:
        raise ShimError("no space left on device")

    monkeypatch.setattr("shim.base.atomic_files.write_atomically", full)
    with pytest.raises(ShimError, match="no space"):
        store.put(ID, pb.LinuxContainerResources())
    assert store.get(ID) == LIMITS


def test_id_with_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot name a file"):
        LimitStore(tmp_path).put("../x", LIMITS)


def test_newer_file_of_limits_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    container = "c" * 64
    limits = pb.LinuxContainerResources(memory_limit_in_bytes=1 << 20)
    with monkeypatch.context() as newer:
        newer.setattr(envelope, "VERSION", 2)
        LimitStore(tmp_path).put(container, limits)
    store = LimitStore(tmp_path)
    store.keep_only({container})
    assert store.get(container) is None
    with pytest.raises(FailedPrecondition, match="its version 2 is not 1"):
        store.check(container)
    monkeypatch.setattr(envelope, "VERSION", 2)
    assert LimitStore(tmp_path).get(container) == limits


def test_limits_that_are_too_large_are_refused_and_not_read(tmp_path: Path) -> None:
    store = LimitStore(tmp_path)
    with pytest.raises(InvalidArgument, match=f"limits of container {ID}: [0-9]+ bytes, the limit is {FILE_LIMIT}"):
        store.put(ID, pb.LinuxContainerResources(unified={"a": "x" * FILE_LIMIT}))
    (tmp_path / f"{ID}.json").write_bytes(b" " * (FILE_LIMIT + 1))
    with pytest.raises(FailedPrecondition, match=f"more than {FILE_LIMIT} bytes"):
        LimitStore(tmp_path).check(ID)
