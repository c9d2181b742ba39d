"""Writes are atomic, durable and private, and errors name the file."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shim.base import atomic_files
from shim.domain.errors import InvalidArgument, ResourceExhausted, ShimError
from tests.facts import mode_of
from tests.mounts import small_tmpfs


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        pytest.param(errno.ENOSPC, ResourceExhausted, id="disk full"),
        pytest.param(errno.EDQUOT, ResourceExhausted, id="quota"),
        pytest.param(errno.EMFILE, ResourceExhausted, id="descriptors"),
        pytest.param(errno.EROFS, ShimError, id="read-only"),
        pytest.param(errno.EIO, ShimError, id="broken disk"),
    ],
)
def test_a_system_error_becomes_a_shim_error(number: int, kind: type[ShimError]) -> None:
    with pytest.raises(ShimError) as caught, atomic_files.failing_as("write /state/a"):
        raise OSError(number, os.strerror(number), "/state/.a.tmp")
    assert type(caught.value) is kind
    assert str(caught.value) == f"write /state/a: {os.strerror(number).lower()}"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a/" * 2048, "path has 4096 bytes, at most 4095 are allowed"),
        ("a/" + "é" * 128, "path holds a name of 256 bytes, at most 255 are allowed"),
    ],
    ids=["path", "name"],
)
def test_a_path_longer_than_the_kernel_allows_is_refused(path: str, reason: str) -> None:
    atomic_files.check_path_length(path[:-1], field="path")
    with pytest.raises(InvalidArgument, match=f"^{reason}$"):
        atomic_files.check_path_length(path, field="path")


def test_a_shim_error_passes_unchanged() -> None:
    error = ShimError("as it was")
    with pytest.raises(ShimError) as caught, atomic_files.failing_as("write /state/a"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("content", [b"", b"new", bytes(range(256)) * 4096], ids=["empty", "small", "1 MiB"])
def test_write_replaces_the_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    atomic_files.write_atomically(path, content)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0, 0o077, 0o277])
def test_a_file_has_mode_0600_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        atomic_files.write_atomically(tmp_path / "state", b"x")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "state") == 0o600


def test_a_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    contents = [bytes([letter]) * 50_000 for letter in b"ab"]
    atomic_files.write_atomically(path, contents[0])
    stop = threading.Event()
    seen: set[bytes] = set()

    def read() -> None:
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(100):
        atomic_files.write_atomically(path, contents[turn % 2])
    stop.set()
    reader.join()
    assert seen <= set(contents)


def test_parallel_writers_leave_one_whole_content(tmp_path: Path) -> None:
    path = tmp_path / "state"
    contents = [bytes([letter]) * 10_000 for letter in b"abcdefgh"]
    writers = [threading.Thread(target=atomic_files.write_atomically, args=(path, content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_keeps_the_old_content_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        path = small.path / "state"
        atomic_files.write_atomically(path, b"old")
        small.fill()
        with pytest.raises(ResourceExhausted, match=f"write {path}: no space left on device"):
            atomic_files.write_atomically(path, b"x" * 100_000)
        assert path.read_bytes() == b"old"
        assert sorted(found.name for found in small.path.iterdir()) == ["filler", "state"]


def test_the_error_names_a_file_on_a_read_only_disk(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk") as small:
        path = small.path / "state"
        atomic_files.write_atomically(path, b"old")
        small.make_read_only()
        with pytest.raises(ShimError, match=f"write {path}: read-only file system"):
            atomic_files.write_atomically(path, b"new")
        with pytest.raises(ShimError, match=f"remove {path}: read-only file system"):
            atomic_files.remove_file(path)
        assert path.read_bytes() == b"old"


def test_a_missing_directory_fails_a_write_but_not_a_remove(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "state"
    with pytest.raises(ShimError, match=f"write {path}: no such file or directory"):
        atomic_files.write_atomically(path, b"new")
    atomic_files.remove_file(path)


def test_removing_a_missing_file_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"x")
    atomic_files.remove_file(path)
    atomic_files.remove_file(path)
    assert not path.exists()


def test_only_temporary_files_of_writes_are_removed(tmp_path: Path) -> None:
    names = [".state.0123abcd.tmp", "state.json", "notes.tmp", ".hidden"]
    for name in names:
        (tmp_path / name).write_text("x")
    atomic_files.remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "notes.tmp", "state.json"]


def test_a_private_directory_gets_mode_0700(tmp_path: Path) -> None:
    fresh = tmp_path / "a" / "b"
    atomic_files.ensure_private_directory(fresh)
    assert mode_of(fresh) == 0o700
    fresh.chmod(0o755)
    atomic_files.ensure_private_directory(fresh)
    assert mode_of(fresh) == 0o700


def test_the_error_names_a_file_in_place_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(ShimError, match=f"create the directory {tmp_path / 'state'}: file exists"):
        atomic_files.ensure_private_directory(tmp_path / "state")


def test_a_file_larger_than_the_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10)
    assert atomic_files.read_regular(path, most=10) == b"x" * 10
    with pytest.raises(OSError, match="more than 9 bytes"):
        atomic_files.read_regular(path, most=9)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_reading_anything_but_a_regular_file_fails_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="not a regular file"):
        atomic_files.read_regular(tmp_path / "x", most=10)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
