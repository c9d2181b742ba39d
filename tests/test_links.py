"""Links between the pages of this repository have targets."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)\s#]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as git forges make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_have_targets(page: Path) -> None:
    for name, anchor in LINK.findall(page.read_text()):
        target = (page.parent / name).resolve() if name else page

        assert target.exists(), f"{page.name} links to {name}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {name}#{anchor}"


def test_each_page_can_be_reached_from_the_readme() -> None:
    reached, fresh = set[Path](), {ROOT / "README.md"}
    while fresh:
        page = fresh.pop()
        reached.add(page)
        linked = {(page.parent / name).resolve() for name, _ in LINK.findall(page.read_text()) if name.endswith(".md")}
        fresh |= linked - reached

    assert set(PAGES) - reached == set()
