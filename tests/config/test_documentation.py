"""docs/configuration.md agrees with the model."""

from pathlib import Path

import pytest

from shim.config import show
from shim.config.cri_dockerd_flags import ALIASES, IGNORED
from shim.config.fields import Field, fields

DASH = "\N{EN DASH}"
PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("field", fields().values(), ids=list(fields()))
def test_every_setting_has_a_row(field: Field) -> None:
    default = show.text(field.default)
    shown = f"`{default}`" if default else "empty"

    assert f"| `{field.name}` | {shown} | {field.doc} | {field.accepted} | {field.zero or DASH} |\n" in PAGE


def test_every_row_is_a_setting() -> None:
    table = PAGE.split("## Settings")[1].split("##")[0]

    assert table.count("\n| `") == len(fields())


@pytest.mark.parametrize("flag", [*ALIASES, *(entry.flag for entry in IGNORED)])
def test_every_flag_of_cri_dockerd_has_a_row(flag: str) -> None:
    assert f"| `{flag}` |" in PAGE
