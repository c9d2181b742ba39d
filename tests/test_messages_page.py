"""docs/messages.md has a row for each message of the server's log from info on, with its level, and no other row."""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/messages.md").read_text()
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
"""Level of each method of a logger."""


@cache
def calls() -> Sequence[tuple[str, ast.Call, str]]:
    """Return place, call and level of each `log.<method>(...)` in the package."""
    found = []
    for path in sorted((ROOT / "shim").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "log." in text else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=method)) if method in LEVELS:
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno}", node, LEVELS[method]))
    return found


def message_of(call: ast.Call) -> str | None:
    """Return the message of a call; None if it is no constant."""
    match call.args:
        case [ast.Constant(value=str(message))]:
            return message
    return None


def rows() -> list[tuple[str, str]]:
    """Return level and message of each row; tables of messages at `info` have no column for the level."""
    tables = re.findall(r"^\| message at `info` \| meaning \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    at_info = [("info", message) for table in tables for message in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)]
    return at_info + re.findall(r"^\| (debug|info|warning|error) \| ([^|]+) \|", PAGE, flags=re.MULTILINE)


def test_each_message_is_a_constant() -> None:
    assert [place for place, call, _ in calls() if message_of(call) is None] == []


def test_each_message_has_its_row() -> None:
    messages = {(level, message_of(call)) for _, call, level in calls() if level != "debug"}

    assert len(messages) > 100
    assert messages - set(rows()) == set()


def test_each_row_is_of_a_message() -> None:
    assert set(rows()) - {(level, message_of(call)) for _, call, level in calls()} == set()


def test_no_message_has_two_rows() -> None:
    assert len(rows()) == len(set(rows()))


def test_each_row_of_a_warning_or_error_has_a_remedy() -> None:
    urgent = re.findall(r"^\| (?:warning|error) \| .*$", PAGE, flags=re.MULTILINE)

    assert urgent
    assert [row for row in urgent if len(row.strip("| ").split(" | ")) != 4] == []
