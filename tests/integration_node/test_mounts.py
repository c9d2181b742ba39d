import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.node import mounts
from integration.node.commands import NodeError
from integration.node.mounts import mounts_below, unmount_all
from tests.mounts import need_root


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    need_root()
    made = tmp_path / "with a space"
    made.mkdir()
    yield made
    unmount_all(tmp_path, abandon=True)


def mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def tmpfs(path: Path) -> None:
    path.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", path)


def test_a_directory_and_a_file_bound_on_themselves_are_unmounted(directory: Path) -> None:
    file = directory / "file"
    file.touch()
    mount("--bind", file, file)
    mount("--bind", directory, directory)
    assert not os.path.ismount(file)

    unmount_all(directory)

    assert mounts_below(directory) == []


def test_a_hidden_mount_is_unmounted_after_the_mount_above_it(directory: Path) -> None:
    tmpfs(directory)
    tmpfs(directory / "below")
    tmpfs(directory)
    tmpfs(directory)
    assert len(mounts_below(directory)) == 4

    unmount_all(directory)

    assert mounts_below(directory) == []


def test_a_mount_below_an_older_moved_mount_is_unmounted_after_it(directory: Path) -> None:
    older, newer = directory / "older", directory / "newer"
    mount("--bind", directory, directory)
    mount("--make-private", directory)
    tmpfs(older)
    tmpfs(newer)
    mount("--move", older, newer)

    unmount_all(newer)

    assert mounts_below(newer) == []


def test_a_mount_hidden_from_outside_of_the_directory_is_left(directory: Path) -> None:
    tmpfs(directory / "deep")
    tmpfs(directory)
    hidden = mounts_below(directory)[0]

    unmount_all(directory / "deep")

    assert mounts_below(directory / "deep") == [hidden]


def test_other_mounts_stay(directory: Path, tmp_path: Path) -> None:
    other = tmp_path / "with a space too"
    tmpfs(other)
    tmpfs(directory)

    unmount_all(directory)

    assert len(mounts_below(other)) == 1
    unmount_all(directory)


def test_a_mount_in_use_is_named_or_detached(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_IN_USE_SECONDS", 0.0)
    tmpfs(directory)
    with (directory / "file").open("w"):
        with pytest.raises(NodeError, match=r"with a space: Device or resource busy"):
            unmount_all(directory)
        unmount_all(directory, abandon=True)

    assert mounts_below(directory) == []
