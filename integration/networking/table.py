"""The table in docs/networking.md: the connections that work with each example, and the impossible ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from integration.networking.directions import DIRECTIONS

PAGE = Path(__file__).parents[2] / "docs/networking.md"
BEGIN, END = "<!-- table: make networking -->\n", "<!-- end of the table -->\n"

FAMILIES = (4, 6)
FILTERS = ("iptables-legacy", "iptables-nft", "nftables")

IMPOSSIBLE = {"60-ipvlan.conflist": "impossible here: the kernel of the tests has no ipvlan"}
"""Examples that are not tested."""

_PAST_THE_NODE = "impossible: packets of macvlan pods go past the node, which can neither redirect nor reach them"
_WITH_MACVLAN = ("pod to pod", "pod to outside")
WITHOUT = {
    "50-macvlan.conflist": {direction: _PAST_THE_NODE for direction in DIRECTIONS if direction not in _WITH_MACVLAN}
}
"""Impossible directions, by example."""


class Setting(NamedTuple):
    """The Docker version, iptables variant and plugin release of a test."""

    docker: str
    filter: str
    plugins: str


Seen = dict[tuple[str, int, str, Setting], str]
"""Why a connection fails, by example, family, direction and setting; empty if it works."""


def tries(name: str) -> Iterator[tuple[str, int]]:
    """Yield the directions and families that must work with an example."""
    for direction in DIRECTIONS:
        if direction not in WITHOUT.get(name, {}):
            yield direction, 4
            yield direction, 6


def red(seen: Seen) -> list[str]:
    """Return the connections that should work and do not."""
    return [
        f"{name}, IPv{family}, {way}, {setting}: {why}" for (name, family, way, setting), why in seen.items() if why
    ]


def table_of(seen: Seen) -> str:
    """Return the table as Markdown, with the tested versions above and the reasons for failures below."""
    names = sorted({*(name for name, *_ in seen), *IMPOSSIBLE})
    settings = sorted({setting for *_, setting in seen})
    notes = _notes(names)
    tried = f"Docker {_join(s.docker for s in settings)}; CNI plugins {_join(s.plugins for s in settings)}."
    lines = [
        f"{tried} A cell names the releases of Docker on which the connection works.",
        "",
        f"| example | family | filter | {' | '.join(DIRECTIONS)} |",
        f"| --- | --- | --- |{' --- |' * len(DIRECTIONS)}",
    ]
    for name in names:
        cells_of = {
            (family, kind): tuple(
                _cell(seen, name=name, family=family, way=way, kind=kind, notes=notes) for way in DIRECTIONS
            )
            for family in FAMILIES
            for kind in FILTERS
        }
        for cells, families, kinds in _merged(cells_of):
            where = f"{', '.join(f'IPv{family}' for family in families)} | {', '.join(kinds)}"
            lines.append(f"| `{name}` | {where} | {' | '.join(cells)} |")
    lines += ["", *(f"- {mark}: {reason}" for reason, mark in notes.items()), ""]
    return "\n".join(lines)


def replace_table(page: str, table: str) -> str:
    """Return the page with its table replaced by this table."""
    head, _, rest = page.partition(BEGIN)
    _, _, foot = rest.partition(END)
    return f"{head}{BEGIN}\n{table}\n{END}{foot}"


def reason_without(name: str, way: str) -> str:
    """Return why an example has no connections of a direction; empty if it has."""
    return IMPOSSIBLE.get(name) or WITHOUT.get(name, {}).get(way, "")


def _merged(
    cells_of: dict[tuple[int, str], tuple[str, ...]],
) -> Iterator[tuple[tuple[str, ...], list[int], list[str]]]:
    """Merge equal rows: yield each with its families and filters. Families with the same filters share a row."""
    for cells in dict.fromkeys(cells_of.values()):
        kinds = {
            family: [kind for kind in FILTERS if cells_of[family, kind] == cells]
            for family in FAMILIES
            if cells in {cells_of[family, kind] for kind in FILTERS}
        }
        if len({*map(tuple, kinds.values())}) == 1:
            yield cells, list(kinds), next(iter(kinds.values()))
        else:
            yield from ((cells, [family], of) for family, of in kinds.items())


def _notes(names: list[str]) -> dict[str, str]:
    """Return the footnote mark of each reason."""
    reasons = dict.fromkeys(reason_without(name, way) for name in names for way in DIRECTIONS)
    return {reason: f"({number})" for number, reason in enumerate(filter(None, reasons), start=1)}


def _cell(seen: Seen, *, name: str, family: int, way: str, kind: str, notes: dict[str, str]) -> str:
    if reason := reason_without(name, way):
        return notes[reason]
    here = [
        (setting.docker, why)
        for (example, number, direction, setting), why in seen.items()
        if (example, number, direction, setting.filter) == (name, family, way, kind)
    ]
    green = sorted({docker for docker, _ in here} - {docker for docker, why in here if why})
    return ", ".join(green) or "no"


def _join(words: Iterator[str]) -> str:
    return " and ".join(sorted(set(words)))
