"""Recorded outcomes of the unit tests on a Python version."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from integration.conformance import results
from integration.conformance.page import NOT_RUN, page
from integration.pythons.outcomes import Counts, Outcome, counts, file_name, kept, read, write

OUTCOME = Outcome(
    version="0.1.0",
    python="3.12.1",
    libraries="newest",
    architecture="amd64",
    date="2026-11-24",
    counts=Counts(passed=7000, skipped=1, failed=("tests.test_a::test_one",)),
)
TESTS = """\
import pytest


@pytest.fixture
def worse():
    yield
    assert False, "at the end"


@pytest.mark.parametrize("number", [1, 2])
def test_good(number): pass


def test_bad(): assert 1 == 2


def test_bad_and_worse(worse): assert 1 == 2


def test_worse(worse): pass


def test_broken(there_is_none): pass


@pytest.mark.skip
def test_left_out(): pass
"""


def test_each_test_of_pytests_report_counts_once(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
        "--junitxml=report.xml",
    ]
    subprocess.run(command, cwd=tmp_path, check=False, capture_output=True)
    assert counts(tmp_path / "report.xml") == Counts(
        passed=2,
        skipped=1,
        failed=tuple(f"test_some::test_{name}" for name in ("bad", "bad_and_worse", "broken", "worse")),
    )


def test_outcomes_are_read_as_they_were_written(tmp_path: Path) -> None:
    outcomes = (OUTCOME, replace(OUTCOME, counts=Counts(), missing="no interpreter"))
    write(tmp_path / "o.json", outcomes)
    assert read(tmp_path / "o.json") == outcomes


def test_a_file_of_another_shape_is_refused_by_the_name_of_the_field(tmp_path: Path) -> None:
    (tmp_path / "o.json").write_text('[{"version": "0.1.0"}]')
    with pytest.raises(msgspec.ValidationError, match="missing required field `python`"):
        read(tmp_path / "o.json")


def test_a_newer_outcome_of_the_same_python_has_the_same_file() -> None:
    assert file_name(replace(OUTCOME, python="3.12.9", date="2027-01-01")) == file_name(OUTCOME)
    assert file_name(OUTCOME) == "unit_0.1.0_python-3.12_newest_amd64.json"
    assert file_name(replace(OUTCOME, libraries="lowest")) == "unit_0.1.0_python-3.12_lowest_amd64.json"


def test_outcomes_are_sorted_by_version_and_exclude_runs(tmp_path: Path) -> None:
    outcomes = [replace(OUTCOME, python=f"3.{minor}.0") for minor in (9, 10, 11)]
    for outcome in outcomes:
        write(tmp_path / file_name(outcome), [outcome])
    assert list(kept(tmp_path)) == outcomes
    assert results.kept(tmp_path) == ()


def test_the_page_has_a_row_for_each_python_and_names_failed_tests() -> None:
    lowest = replace(OUTCOME, python="3.11.7", libraries="lowest", counts=Counts(passed=6900))
    section = page([], [lowest, OUTCOME]).partition("## Unit tests")[2].partition("## Not run")[0].splitlines()
    assert "| 0.1.0 | 3.11.7 | lowest | amd64 | 2026-11-24 | 6900 | 0 | 0 |" in section
    assert "| 0.1.0 | 3.12.1 | newest | amd64 | 2026-11-24 | 7000 | 1 | 1 |" in section
    assert "| tests.test_a::test_one | 3.12.1, newest |" in section
    assert f"|  | 3.14 |  |  | {NOT_RUN} |  |  |  |" in section
