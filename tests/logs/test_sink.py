import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim.logs.lines import BLOCK
from shim.logs.sink import Sink, rotated_logs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pod" / "app" / "0.log"


@pytest.fixture
def sink(path: Path) -> Iterator[Sink]:
    made = Sink(path)
    yield made
    made.close()


def test_open_creates_the_directories_and_the_log_with_its_mode(sink: Sink, path: Path) -> None:
    before = os.umask(0o077)
    try:
        sink.open()
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_bytes() == b""


def test_lines_are_appended(sink: Sink, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"there\n")
    sink.open()
    sink.write(b"one\ntwo\n")
    path.write_bytes(b"")  # truncated by others: O_APPEND leaves no hole
    sink.write(b"three\n")
    assert path.read_bytes() == b"three\n"


def test_a_torn_line_is_cut_off(sink: Sink, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"whole\ntor")
    sink.open()
    assert path.read_bytes() == b"whole\n"


def test_a_file_that_is_not_a_log_is_not_changed(sink: Sink, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * (BLOCK + 1))
    with pytest.raises(OSError, match="not a line of a container log"):
        sink.open()
    assert path.stat().st_size == BLOCK + 1


def test_a_link_is_not_followed(sink: Sink, path: Path) -> None:
    path.parent.mkdir(parents=True)
    victim = path.with_name("victim")
    victim.write_bytes(b"precious")
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links") as raised:
        sink.open()
    assert raised.value.errno == errno.ELOOP
    assert victim.read_bytes() == b"precious"


def test_a_fifo_is_refused_at_once(sink: Sink, path: Path) -> None:
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        sink.open()


def test_open_after_a_rename_switches_to_a_new_file(sink: Sink, path: Path) -> None:
    sink.open()
    sink.write(b"old\n")
    path.rename(path.with_name("0.log.1"))
    sink.open()
    sink.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert path.with_name("0.log.1").read_bytes() == b"old\n"


def test_open_without_a_rename_keeps_the_file(sink: Sink, path: Path) -> None:
    sink.open()
    sink.write(b"a\n")
    sink.open()
    sink.write(b"b\n")
    assert path.read_bytes() == b"a\nb\n"


def test_a_failed_open_keeps_the_old_file_open(sink: Sink, path: Path) -> None:
    sink.open()
    old = path.with_name("0.log.1")
    path.rename(old)
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        sink.open()
    sink.write(b"goes on\n")
    assert old.read_bytes() == b"goes on\n"


def test_a_second_process_cannot_open_the_log(sink: Sink, path: Path) -> None:
    sink.open()
    other = Sink(path)
    with pytest.raises(OSError, match="another process"):
        other.open()
    sink.close()
    other.open()
    other.close()


def test_a_replaced_log_is_detected(sink: Sink, path: Path) -> None:
    sink.open()
    assert not sink.replaced()
    old = path.with_name("0.log.1")
    path.rename(old)
    assert not sink.replaced()
    sink.open()
    path.unlink()
    assert not sink.replaced()  # the kubelet asks for a new file when it notices
    old.rename(path)
    assert sink.replaced()


def test_a_partial_write_leaves_whole_lines(sink: Sink, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that becomes full during a write causes a partial write."""
    sink.open()
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        sink.write(b"one\ntwo\nthree\nfour\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_rotated_logs_are_returned_newest_first(path: Path) -> None:
    path.parent.mkdir(parents=True)
    names = [
        "0.log.20260102-000000",
        "0.log.20260101-000000",
        "0.log.20250101-000000.gz",
        "0.log.x.tmp",
        "00.log",
        "0.log",
    ]
    for age, name in enumerate(names):
        path.with_name(name).touch()
        os.utime(path.with_name(name), ns=(100 - age, 100 - age))
    assert [found.name for found in rotated_logs(path)] == names[:3]
    assert rotated_logs(Path("/nowhere/0.log")) == []


def test_directories_and_links_are_not_rotated_logs(path: Path) -> None:
    path.parent.mkdir(parents=True)
    rotated = path.with_name("0.log.20260101-000000")
    rotated.touch()
    path.with_name("0.log.d").mkdir()
    path.with_name("0.log.last").symlink_to(rotated.name)
    os.mkfifo(path.with_name("0.log.pipe"))
    assert rotated_logs(path) == [rotated]
