import subprocess
from pathlib import Path

import pytest

from integration.conformance import machine
from integration.conformance.machine import commit


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "_REPOSITORY", tmp_path)
    return tmp_path


def git(repository: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    command = ["git", "-C", str(repository), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_kept_result_does_not_count_as_a_changed_program(repository: Path) -> None:
    program, result = repository / "shim.py", repository / "integration/conformance/results/a.json"
    result.parent.mkdir(parents=True)
    for path in (program, result):
        path.write_text("before")
    git(repository, "init", "-q")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "first")
    head = git(repository, "rev-parse", "HEAD")[:12]
    assert commit() == head
    result.write_text("after")
    assert commit() == head

    program.write_text("after")

    assert commit() == f"{head}-dirty"


def test_without_a_repository_there_is_no_commit(repository: Path) -> None:
    assert repository.is_dir()
    assert commit() == ""
