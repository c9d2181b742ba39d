# ruff: noqa: T201 - a command
"""`make quick`: the unit tests of what has changed, and those of the pages, within a time for a run between edits.

What has changed is found by git: since `origin/main`, or `main` without that, with what is not committed. Tests of the
changed files come first, then those of their rooms. What the time does not suffice for is skipped, and the results say
so.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 60.0
"""Until no other test begins. The rest of the 90 s is for the start of pytest, and the last tests."""
_WORKERS = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that this run is bounded by."""
    parser.addoption("--quick-until", type=float, required=True, help="begin no test after this second of the epoch")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the time does not suffice for."""
    if time.time() > item.config.getoption("--quick-until"):
        pytest.skip("the time of `make quick` is over: `make unit` runs this test")


def files_for(changed: Iterable[str], *, root: Path = ROOT) -> list[str]:
    """Return the test files and folders of changed files, those nearest to a change first; pages last."""
    near: list[Path] = []
    rooms: list[Path] = []
    for path in sorted(map(Path, changed)):
        if path.suffix != ".py":
            continue
        if path.parts[0] == "tests":
            near.append(path)
        elif path.parts[0] == "shim":
            inside = path.relative_to("shim")
            near.append(Path("tests", inside.parent, f"test_{inside.name}"))
            rooms += [Path("tests", inside.parts[0])] if len(inside.parts) > 1 else []
    pages = sorted(path.relative_to(root) for path in (root / "tests").glob("test_*.py"))
    wanted = [path for path in (*near, *rooms, *pages) if (root / path).is_dir() or path.name.startswith("test_")]
    return [str(path) for path in dict.fromkeys(wanted) if (root / path).exists()]


def changed(root: Path = ROOT) -> list[str]:
    """Return the paths that differ from upstream; a contributor may have committed on the branch `main`."""
    upstream = _git(root, "rev-parse", "--verify", "--quiet", "origin/main").strip() or "main"
    listed = [
        _git(root, "diff", "--merge-base", "--name-only", upstream),
        _git(root, "ls-files", "--others", "--exclude-standard"),
    ]
    return [name for names in listed for name in names.splitlines()]


def _git(root: Path, *words: str) -> str:
    finished = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return finished.stdout if finished.returncode == 0 else ""


def main() -> int:
    """Run the tests, and say how long they took."""
    parser = argparse.ArgumentParser(prog="python -m tests.quick", description=__doc__)
    _, others = parser.parse_known_args()
    tests = files_for(changed())
    began = time.time()
    bound = ["-p", "tests.quick", f"--quick-until={began + SECONDS}"]
    words = ["-q", "-r", "fE", *bound, "-n", str(_WORKERS), *tests, *others]
    status = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode
    print(f"{len(tests)} files and folders of tests in {time.time() - began:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
