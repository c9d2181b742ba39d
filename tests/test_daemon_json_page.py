"""docs/daemon-json.md has every option of dockerd once, and the tests' daemons have the overridden options.

tests/data/daemon-json.tsv names, by the options of a row, a test that mentions one of them.
"""

import re
from pathlib import Path

import pytest

from integration.fields.daemons import DAEMONS, options
from tests.test_fields_page import text_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/daemon-json.md").read_text()
SECTIONS = {name: text for name, _, text in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}
ROWS = {name: re.findall(r"^\| (`.+?`) \| .* \|$", text, re.MULTILINE) for name, text in SECTIONS.items()}
_LINES = (ROOT / "tests/data/daemon-json.tsv").read_text().splitlines()
TESTED = dict(line.split("\t") for line in _LINES if line[:1] != "#")


def keys(cell: str) -> list[str]:
    """Return the options of a row's first column."""
    return re.findall(r"`([\w-]+)`", cell)


def test_every_option_is_in_exactly_one_row() -> None:
    named = [key for cells in ROWS.values() for cell in cells for key in keys(cell)]

    assert sorted(named) == sorted({key for key, _flag, _engines in options()} - {"-"})
    assert sum(map(len, ROWS.values())) == PAGE.count("\n| `")


@pytest.mark.parametrize("option", [key for cell in ROWS["Overridden"] for key in keys(cell)])
def test_a_daemon_of_the_tests_has_each_overridden_option(option: str) -> None:
    assert any(option in settings for settings in DAEMONS.values())


def test_tests_are_those_of_rows() -> None:
    assert set(TESTED) <= {" ".join(keys(cell)) for cells in ROWS.values() for cell in cells}


@pytest.mark.parametrize(("row", "test"), TESTED.items())
def test_the_test_of_a_row_mentions_its_option(row: str, test: str) -> None:
    text = text_of(test) if list((ROOT / "integration").rglob(f"{test}.py")) else unit_test(test)

    assert any(re.search(rf"\b{key}\b", text) for key in row.split())


def unit_test(name: str) -> str:
    """Return the source of a unit test."""
    (path,) = (ROOT / "tests").rglob(f"{name}.py")
    return path.read_text()
