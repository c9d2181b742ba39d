"""Programs written by tests, and an environment that finds them."""

import os
from pathlib import Path

import pytest

from tests.credentials.programs import Programs


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Executables in a directory that is first on PATH."""
    made = Programs(tmp_path / "programs")
    monkeypatch.setenv("PATH", f"{made.bin_dir}{os.pathsep}{os.environ['PATH']}")
    return made
