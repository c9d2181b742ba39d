import subprocess
import sys
from pathlib import Path

import pytest

from integration.kind.demo import missing_programs


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with docker and kubectl, and no kind."""
    for name in ("docker", "kubectl"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_missing_programs_are_named(programs: Path) -> None:
    assert missing_programs(["docker", "kind", "kubectl"], str(programs)) == ["kind"]


def test_the_demo_says_what_is_missing_and_changes_nothing(programs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.kind.demo", "run", f"--bin={programs}"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kind: not on the PATH: kind (BIN=directory adds one)\n"
