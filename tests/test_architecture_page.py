"""docs/architecture.md is short, and its diagram of the layers has every part of the package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text()
PICTURE = PAGE.split("```mermaid\n")[1].split("```")[0]
MAX_WORDS = 900

PARTS = sorted(
    path.stem
    for path in (ROOT / "shim").iterdir()
    if not path.name.startswith("__") and (path.suffix == ".py" or (path / "__init__.py").is_file())
)


@pytest.mark.parametrize("part", PARTS)
def test_the_picture_has_every_part_of_the_package(part: str) -> None:
    assert re.search(rf"\b{part}\b", PICTURE)


def test_the_page_is_short() -> None:
    assert len(PAGE.split()) <= MAX_WORDS


def test_files_named_in_the_pages_exist() -> None:
    pages = ["architecture", "pod-lifecycle", "node-view", "docker-quirks"]
    named = {
        name
        for page in pages
        for name in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", (ROOT / f"docs/{page}.md").read_text())
    }

    assert named
    assert [name for name in sorted(named) if not (ROOT / "shim" / name).is_file()] == []
