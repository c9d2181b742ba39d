"""The table in docs/networking.md is complete: each connection was tested with both Engines, or is impossible."""

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
    found = [
        key for name, families, kinds, *_ in ROWS for key in product([name], families.split(", "), kinds.split(", "))
    ]

    assert sorted(found) == sorted(product(names, ("IPv4", "IPv6"), FILTERS))


def test_every_connection_worked_with_both_engines_or_is_impossible() -> None:
    assert len(DOCKER) == 2
    for name, _, _, *cells in ROWS:
        expected = [REASONS.get(reason_without(name.strip("`"), way), ", ".join(DOCKER)) for way in DIRECTIONS]
        assert cells == expected


def test_a_connection_that_fails_with_one_plugin_release_is_not_in_the_table() -> None:
    way = "pod to pod"
    settings = [Setting(docker="28.5.2", filter="iptables-nft", plugins=release) for release in ("1.1.1", "1.9.1")]
    seen = {
        ("10-bridge.conflist", 4, way, setting): why for setting, why in zip(settings, ("", "timed out"), strict=True)
    }

    row = next(line for line in table_of(seen).splitlines() if "10-bridge" in line)

    assert row.split("|")[4].strip() == "no"


def test_rows_with_equal_cells_are_merged() -> None:
    seen = {
        ("10-bridge.conflist", family, way, Setting(docker="28.5.2", filter=kind, plugins="1.9.1")): (
            "timed out" if (family, kind) == (6, "nftables") else ""
        )
        for family, way, kind in product((4, 6), DIRECTIONS, FILTERS)
    }

    rows = [line.split("|")[2:5] for line in table_of(seen).splitlines() if "10-bridge" in line]

    assert [[cell.strip() for cell in row] for row in rows] == [
        ["IPv4", "iptables-legacy, iptables-nft, nftables", "28.5.2"],
        ["IPv6", "iptables-legacy, iptables-nft", "28.5.2"],
        ["IPv6", "nftables", "no"],
    ]


def test_a_new_table_replaces_the_old() -> None:
    page = f"above\n{BEGIN}old\n{END}below\n"

    assert replace_table(page, "new\n") == f"above\n{BEGIN}\nnew\n\n{END}below\n"
