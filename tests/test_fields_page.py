"""docs/fields.md has exactly the fields of pod and container configurations.

tests/data/fields.tsv names the code of each row, and a test that mentions its field.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.engine.versions import FIRST_ENGINE

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/fields.md").read_text()
ROW = re.compile(r"^\| `(?P<field>\w+)` \| (?P<what>.+?) \| (?P<engine>.*?) ?\|$", re.MULTILINE)

_LINES = (ROOT / "tests/data/fields.tsv").read_text().splitlines()
CODE_AND_TEST = {name: (code, test) for name, code, test in (line.split("\t") for line in _LINES if line[:1] != "#")}
"""Code and test, by message and field."""


def messages(of: Any) -> Iterator[Any]:
    """Yield a message and the messages of its fields, each once, without Windows messages, which are refused whole."""
    found = {of.name: of}
    waiting = [of]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            known = inner is None or inner.GetOptions().map_entry or inner.name.startswith("Windows")
            if inner is not None and not known and inner.name not in found:
                found[inner.name] = inner
                waiting.append(inner)
    return iter(found.values())


ROOTS = (
    pb.RunPodSandboxRequest,
    pb.CreateContainerRequest,
    pb.UpdateContainerResourcesRequest,
    pb.UpdatePodSandboxResourcesRequest,
    pb.CheckpointContainerRequest,
    pb.CheckpointPodRequest,
    pb.RestorePodRequest,
)
MESSAGES = {one.name: one for root in ROOTS for one in messages(root.DESCRIPTOR)}
SECTIONS = {name: text for name, _, text in (part.partition("\n") for part in PAGE.split("\n## ")[1:])}
ROWS = [match for text in SECTIONS.values() for match in ROW.finditer(text)]
FIELDS = {f"{name}.{row['field']}": row for name, text in SECTIONS.items() for row in ROW.finditer(text)}


def text_of(test: str) -> str:
    """Return the source of a test file and of the modules with its cases, but not of modules that all tests use."""
    (path,) = (ROOT / "integration").rglob(f"{test}.py")
    text = path.read_text()
    beside = re.findall(rf"^from integration\.{path.parent.name}\.(\w+) import", text, re.MULTILINE)
    return "\n".join([text, *((path.parent / f"{name}.py").read_text() for name in beside)])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_has_a_row_for_each_field_in_order(name: str) -> None:
    rows = [match["field"] for match in ROW.finditer(SECTIONS.get(name, ""))]

    assert rows == [field.name for field in MESSAGES[name].fields]


def test_each_row_is_of_a_field() -> None:
    assert {name for name, text in SECTIONS.items() if ROW.search(text)} == MESSAGES.keys()
    assert len(ROWS) == PAGE.count("\n| `")


def test_each_row_has_its_code_and_test() -> None:
    assert list(CODE_AND_TEST) == list(FIELDS)


@pytest.mark.parametrize("code", sorted({code for code, _ in CODE_AND_TEST.values()}))
def test_the_code_of_a_row_exists(code: str) -> None:
    assert (ROOT / code).is_file()


@pytest.mark.parametrize("name", CODE_AND_TEST)
def test_the_test_of_a_row_mentions_its_field(name: str) -> None:
    _, test = CODE_AND_TEST[name]

    assert re.search(rf"\b{name.partition('.')[2]}\b", text_of(test))


@pytest.mark.parametrize("engine", sorted({row["engine"] for row in ROWS if row["engine"]}))
def test_errors_name_each_engine_of_the_page(engine: str) -> None:
    assert engine.partition(" ")[0] in FIRST_ENGINE.values()


@pytest.mark.parametrize("kind", ["refused", "ignored"])
def test_a_field_without_effect_has_a_reason(kind: str) -> None:
    mentions = [row["what"] for row in ROWS if f"**{kind}**" in row["what"]]

    assert mentions
    assert [what for what in mentions if what.endswith(f"**{kind}**")] == []
