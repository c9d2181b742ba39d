"""python -m integration.pythons: run the unit tests on all supported versions of Python, in separate environments.

`--lowest` uses the oldest Python with the oldest allowed libraries, without tracing, whose libraries need newer
versions. `--json FILE` stores the outcome: the exact version of Python, the date, and the counts of tests. `--write`
stores it for docs/compatibility.md, which `python -m integration.conformance.page` generates.
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
"""Tests of the generator, which only the environment of `make venv` has."""
_NOT_LOWEST = ("tests/cri/test_tracing.py",)
_RAN = (0, 1)
"""Exit statuses of pytest after running all tests: without and with failures."""


def main() -> int:
    """Run the tests; return 1 if a test failed, and 2 if pytest could not run them."""
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
            print("pythons: a run with arguments for pytest is not stored", file=sys.stderr)
            return
        for outcome in outcomes:
            if not outcome.missing:
                write(KEPT / file_name(outcome), [outcome])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m integration.pythons")
    parser.add_argument("--only", action="append", choices=VERSIONS, help="version of Python, may be repeated (all)")
    parser.add_argument("--lowest", action="store_true", help="use the oldest allowed libraries")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome to this file")
    parser.add_argument("--write", action="store_true", help="store the outcome for docs/compatibility.md")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest, after --: options, or tests to run (all)")
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
    chosen = [] if any(Path(each.partition("::")[0]).exists() for each in arguments) else ["tests"]
    command: list[str | Path] = [python, "-m", "pytest", *chosen, "-q", f"--junitxml={report}", *left_out, *arguments]
    status = subprocess.run(command, check=False).returncode
    if status not in _RAN:
        raise NodeError(f"run the unit tests on Python {version}: pytest ended with {status}")
    return replace(outcome, python=exact_version(python), counts=counts(report))


def _environment(version: str, interpreter: Path, *, lowest: bool) -> Path:
    """Create or update a virtual environment for the tests, and return its interpreter."""
    place = _PLACE / (f"{version}-lowest" if lowest else version)
    python = place / "bin/python"
    if not python.exists():
        run([interpreter, "-m", "venv", "--without-pip", place], timeout=_INSTALL_SECONDS)
    wanted = [".", *pins.development(), *pins.lowest()] if lowest else [".[dev]"]
    # With our pip: Debian has pip for each version in a separate package.
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    run([*pip, "--editable", *wanted], timeout=_INSTALL_SECONDS)
    return python


if __name__ == "__main__":
    sys.exit(main())
