"""Which tests `make quick` runs, and that it ends in time."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.quick import ROOT, changed, files_for


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("room/test_a.py", "room/test_b.py", "other/test_c.py", "test_page.py", "test_cli.py"):
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ([], ["tests/test_cli.py", "tests/test_page.py"]),
        (["shim/room/b.py"], ["tests/room/test_b.py", "tests/room", "tests/test_cli.py", "tests/test_page.py"]),
        (["shim/room/untested.py"], ["tests/room", "tests/test_cli.py", "tests/test_page.py"]),
        (["tests/other/test_c.py"], ["tests/other/test_c.py", "tests/test_cli.py", "tests/test_page.py"]),
        (["shim/cli.py", "docs/x.md", "tests/other/gone.py"], ["tests/test_cli.py", "tests/test_page.py"]),
    ],
)
def test_the_files_for_a_change_come_first(checkout: Path, changed: list[str], tests: list[str]) -> None:
    assert files_for(changed, root=checkout) == tests


def git(directory: Path, *words: str) -> None:
    of_nobody = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(directory), *of_nobody, *words], check=True, capture_output=True)


def test_commits_on_main_of_a_clone_are_changes(tmp_path: Path) -> None:
    upstream, clone = tmp_path / "upstream", tmp_path / "clone"
    upstream.mkdir()
    git(upstream, "init")
    git(upstream, "commit", "--allow-empty", "--message=first")
    git(tmp_path, "clone", str(upstream), str(clone))
    (clone / "committed.py").touch()
    git(clone, "add", ".")
    git(clone, "commit", "--message=second")
    (clone / "new.py").touch()
    assert changed(clone) == ["committed.py", "new.py"]

    git(clone, "remote", "remove", "origin")
    assert changed(clone) == ["new.py"]


def test_no_test_begins_after_the_time(tmp_path: Path) -> None:
    file = tmp_path / "test_two.py"
    file.write_text("def test_one():\n    pass\n\n\ndef test_two():\n    pass\n")
    words = ["-q", "-rs", "-p", "tests.quick", "--quick-until=1", "-c", "/dev/null", f"--rootdir={tmp_path}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words, str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert "2 skipped" in run.stdout
    assert "`make unit` runs this test" in run.stdout
