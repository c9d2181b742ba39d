"""docs/networking.md has a table without gaps: each connection was seen with both Engines, or is impossible."""

import re
from itertools import product

from integration.networking.directions import DIRECTIONS
from integration.networking.lab import example_names
from integration.networking.table import BEGIN, END, FILTERS, PAGE, Setting, reason_without, replace_table, table_of

TABLE = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.splitlines() if line.startswith("| `")]
DOCKER = re.findall(r"\d+\.\d+\.\d+", TABLE.partition(";")[0])
REASONS = {
    line.split(": ", 1)[1]: line.split(": ", 1)[0] for line in TABLE.replace("- (", "(").splitlines() if line[:1] == "("
}


def test_every_example_family_and_filter_has_a_row() -> None:
    names = [f"`{name}`" for name in example_names()]

    assert [row[:3] for row in ROWS] == [list(key) for key in product(names, ("IPv4", "IPv6"), FILTERS)]


def test_every_connection_was_seen_with_both_engines_or_is_impossible() -> None:
    assert len(DOCKER) == 2
    for name, _, _, *cells in ROWS:
        expected = [REASONS.get(reason_without(name.strip("`"), way), ", ".join(DOCKER)) for way in DIRECTIONS]
        assert cells == expected


def test_a_connection_that_is_missing_with_one_of_the_plugins_is_not_in_the_table() -> None:
    way = "pod to pod"
    settings = [Setting(docker="28.5.2", filter="iptables-nft", plugins=release) for release in ("1.1.1", "1.9.1")]
    seen = {
        ("10-bridge.conflist", 4, way, setting): why for setting, why in zip(settings, ("", "timed out"), strict=True)
    }

    row = next(line for line in table_of(seen).splitlines() if "IPv4 | iptables-nft" in line)

    assert row.split("|")[4].strip() == "no"


def test_a_new_table_takes_the_place_of_the_old_one() -> None:
    page = f"above\n{BEGIN}old\n{END}below\n"

    assert replace_table(page, "new\n") == f"above\n{BEGIN}\nnew\n\n{END}below\n"
