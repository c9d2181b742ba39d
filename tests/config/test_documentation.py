"""docs/configuration.md says what the model says."""

from pathlib import Path

import pytest

from shim.config import show
from shim.config.fields import Field, fields
from shim.config.legacy import ALIASES, LEGACY

DASH = "\N{EN DASH}"
PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("field", fields().values(), ids=list(fields()))
def test_a_setting_has_its_row(field: Field) -> None:
    default = show.text(field.default)
    shown = f"`{default}`" if default else "empty"

    assert f"| `{field.name}` | {shown} | {field.doc} | {field.accepted} | {field.zero or DASH} |\n" in PAGE


def test_there_is_no_row_of_what_is_no_setting() -> None:
    table = PAGE.split("## Settings")[1].split("##")[0]

    assert table.count("\n| `") == len(fields())


@pytest.mark.parametrize("flag", [*ALIASES, *(entry.flag for entry in LEGACY)])
def test_a_flag_of_cri_dockerd_has_its_row(flag: str) -> None:
    assert f"| `{flag}` |" in PAGE
