import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shim.logs import lines
from shim.logs.lines import end_of_lines, last_lines_compressed, lines_backwards


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=30), st.binary(max_size=5))
def test_lines_backwards_yields_every_whole_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: list[bytes], torn: bytes
) -> None:
    monkeypatch.setattr(lines, "BLOCK", 16)  # as long as the longest line, small enough for many blocks
    content = b"".join(line + b"\n" for line in whole)
    path = tmp_path / "file"
    path.write_bytes(content + torn.replace(b"\n", b""))
    fd = os.open(path, os.O_RDONLY)
    try:
        groups = list(lines_backwards(fd))
        assert end_of_lines(fd) == len(content)
    finally:
        os.close(fd)

    assert b"".join(group for _, group in reversed(groups)) == content
    assert all(content[offset:].startswith(group) and group.endswith(b"\n") for offset, group in groups)


def test_garbage_longer_than_a_record_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 16)
    path = tmp_path / "file"
    path.write_bytes(b"first\n" + bytes(5000) + b"\nlast\n")
    fd = os.open(path, os.O_RDONLY)
    try:
        groups = list(lines_backwards(fd))
    finally:
        os.close(fd)

    assert max(len(group) for _, group in groups) <= 2 * lines.BLOCK
    assert groups[0][1].endswith(b"last\n")
    assert groups[-1][1].startswith(b"first\n")


NUMBERED = b"".join(b"%05d\n" % number for number in range(2000))


def last_lines_of(path: Path, compressed: bytes) -> bytes:
    path.write_bytes(compressed)
    fd = os.open(path, os.O_RDONLY)
    try:
        return last_lines_compressed(fd)
    finally:
        os.close(fd)


def test_a_compressed_file_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    compressed = gzip.compress(NUMBERED[:6000]) + gzip.compress(NUMBERED[6000:] + b"torn")

    assert last_lines_of(tmp_path / "file.gz", compressed) == NUMBERED


def test_only_the_end_of_a_large_compressed_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", 500)
    monkeypatch.setattr(lines, "KEPT", 1000)
    found = last_lines_of(tmp_path / "file.gz", gzip.compress(NUMBERED))

    assert NUMBERED.endswith(b"\n" + found)
    assert 1000 - len(b"00000\n") <= len(found) <= 2000


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda _: b"no gzip", lambda _: b""])
def test_a_damaged_compressed_file_is_read_up_to_the_damage(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    found = last_lines_of(tmp_path / "file.gz", damage(gzip.compress(NUMBERED)))

    assert NUMBERED.startswith(found)
