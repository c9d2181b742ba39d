from collections.abc import Callable
from pathlib import Path

import pytest

from shim.config.watch import FilesWatch

SECONDS = 30


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def replace(path: Path, text: str) -> None:
    other = path.with_name("other")
    other.write_text(text)
    other.rename(path)


def changed(watch: FilesWatch) -> bool:
    """Whether a change is seen after several of its events."""
    return any(watch.wait_changed(SECONDS) for _ in range(20))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda file: put(file, "other"), id="written"),
        pytest.param(lambda file: replace(file, "b"), id="replaced"),
        pytest.param(lambda file: file.unlink(), id="removed"),
        pytest.param(lambda file: file.chmod(0o600), id="mode"),
    ],
)
def test_a_change_of_a_file_is_seen(tmp_path: Path, change: Callable[[Path], None]) -> None:
    file = tmp_path / "etc" / "config.toml"
    put(file, "a")
    with FilesWatch(lambda: [file]) as watch:
        change(file)

        assert changed(watch)
        assert not watch.wait_changed(0)


def test_file_created_with_its_directories_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "config.toml"
    with FilesWatch(lambda: [file]) as watch:
        file.parent.parent.mkdir()
        watch.wait_changed(0)
        put(file, "a")

        assert changed(watch)


def test_a_new_file_of_a_directory_is_seen(tmp_path: Path) -> None:
    with FilesWatch(lambda: [tmp_path, *tmp_path.iterdir()]) as watch:
        put(tmp_path / "a.toml", "a")
        assert changed(watch)

        put(tmp_path / "a.toml", "other")
        assert changed(watch)


def test_a_change_of_what_a_link_leads_to_is_seen(tmp_path: Path) -> None:
    put(tmp_path / "there" / "real", "a")
    link = tmp_path / "here" / "config.toml"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "there" / "real")
    with FilesWatch(lambda: [link]) as watch:
        put(tmp_path / "there" / "real", "other")

        assert changed(watch)


def test_other_files_are_ignored(tmp_path: Path) -> None:
    put(tmp_path / "config.toml", "a")
    with FilesWatch(lambda: [tmp_path / "config.toml"]) as watch:
        put(tmp_path / "other", "a")

        assert not watch.wait_changed(SECONDS)
