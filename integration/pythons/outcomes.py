"""The outcome of the unit tests on one version of Python, and its JSON format."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import msgspec

from integration.conformance.results import KEPT, UNIT_TESTS

Libraries = Literal["newest", "lowest"]


class Counts(msgspec.Struct, frozen=True):
    """Numbers of tests by outcome, and the names of the failed tests."""

    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The unit tests on one version of Python; `missing` says why they were not run."""

    version: str
    """Version of pydockershim."""
    python: str
    """Exact version."""
    libraries: Libraries
    """`newest`, or `lowest`: the oldest allowed versions."""
    architecture: str
    date: str
    """Day in UTC, in the format of ISO 8601."""
    counts: Counts = Counts()
    missing: str = ""

    @property
    def minor(self) -> str:
        """Major and minor version of Python."""
        return ".".join(self.python.split(".")[:2])


def counts(report: Path) -> Counts:
    """Count the tests in pytest's XML report. A test that fails in its call and its teardown counts once."""
    states: dict[str, str] = {}
    for test in ET.parse(report).getroot().iter("testcase"):
        name = f"{test.attrib['classname']}::{test.attrib['name']}"
        if test.find("failure") is not None or test.find("error") is not None:
            states[name] = "failed"
        else:
            states.setdefault(name, "passed" if test.find("skipped") is None else "skipped")
    by_state = list(states.values())
    return Counts(
        passed=by_state.count("passed"),
        skipped=by_state.count("skipped"),
        failed=tuple(sorted(name for name, state in states.items() if state == "failed")),
    )


def write(path: Path, outcomes: Iterable[Outcome]) -> None:
    """Write outcomes as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(list(outcomes))) + b"\n")


def read(path: Path) -> tuple[Outcome, ...]:
    """Read the outcomes of a file. Raises msgspec.DecodeError for invalid content."""
    return msgspec.json.decode(path.read_bytes(), type=tuple[Outcome, ...])


def kept(directory: Path = KEPT) -> tuple[Outcome, ...]:
    """Return all outcomes in the files of a directory, in the order of the versions."""
    found = (outcome for path in directory.glob(f"{UNIT_TESTS}_*.json") for outcome in read(path))
    return tuple(sorted(found, key=_order))


def file_name(outcome: Outcome) -> str:
    """Return the name of the file of an outcome; a newer outcome of the same combination replaces it."""
    parts = (UNIT_TESTS, outcome.version, f"python-{outcome.minor}", outcome.libraries, outcome.architecture)
    return "_".join(parts) + ".json"


def _order(outcome: Outcome) -> tuple[object, ...]:
    numbers = [int(number) for number in outcome.minor.split(".")]
    return outcome.version, numbers, outcome.libraries, outcome.architecture
