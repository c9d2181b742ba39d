import errno
import os
from pathlib import Path

import pytest

from shim.hostfs.host_paths import ensure_directory, nearest_existing, open_directory
from tests.facts import open_descriptors


@pytest.mark.parametrize(("path", "expected"), [("", ""), ("file", "file"), ("a/b", "a"), ("a/b/c", "a"), ("b/c", "")])
def test_nearest_existing_parent_is_found(path: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "file").touch()
    assert nearest_existing(tmp_path / path) == tmp_path / expected


def test_existing_path_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file", Path("/")):
        ensure_directory(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").is_file()


def test_later_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").symlink_to("elsewhere")
    with pytest.raises(NotADirectoryError):
        ensure_directory(tmp_path / "a/new")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    before = open_descriptors()
    with open_directory(tmp_path) as place:
        assert os.fstat(place).st_ino == tmp_path.stat().st_ino
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)), open_directory(tmp_path / "a"):
        pass
    assert open_descriptors() == before
