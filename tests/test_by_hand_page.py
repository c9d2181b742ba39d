"""docs/by-hand.md has a row for each tested command, and no other row."""

import re
from pathlib import Path

from integration.by_hand.verbs import VERBS

PAGE = (Path(__file__).parent.parent / "docs/by-hand.md").read_text()


def test_each_row_is_tested_and_each_command_has_a_row() -> None:
    rows = [
        (section.partition("\n")[0], command)
        for section in PAGE.split("\n## ")[1:]
        for command in re.findall(r"^\| `([^`]+)` \| \S", section, flags=re.MULTILINE)
    ]
    assert rows == list(VERBS)


def test_each_line_of_a_table_is_the_row_of_a_command() -> None:
    lines = [line for line in PAGE.split("\n") if line.startswith("| ") and not line.startswith("| command ")]
    assert len(lines) == len(VERBS)
