"""The picture of invented figures."""

from xml.etree import ElementTree as ET

from integration.bench.scale_figures import EXEC, READS, Step, as_table, drawn

SVG = "{http://www.w3.org/2000/svg}"


def step(pods: int, *, foreign: int = 0) -> Step:
    return Step(
        server="pydockershim",
        pods=pods,
        foreign=foreign,
        start_seconds=pods / 100,
        rss_mib=50 + pods,
        core_percent=3.0,
        took_ms=dict.fromkeys((*READS, EXEC), (1.5, 2.5)),
    )


def test_each_figure_has_a_line_with_a_dot_for_each_size() -> None:
    root = ET.fromstring(drawn([step(10), step(250), step(250, foreign=10_000)], head="a & b", below="c"))
    assert len(list(root.iter(f"{SVG}polyline"))) == 3 + len(READS) + 1
    kinds = [circle.get("class") for circle in root.iter(f"{SVG}circle")]
    assert kinds.count("dot") == 2 * kinds.count("foreign") == 2 * (3 + len(READS) + 1)
    assert "a & b" in [text.text for text in root.iter(f"{SVG}text")]


def test_the_table_has_a_row_for_each_size() -> None:
    head, rule, *rows = as_table([step(10), step(250, foreign=5)]).splitlines()
    assert len(rows) == 2
    assert head.count("|") == rule.count("|") == rows[0].count("|")
    assert rows[1].startswith("| pydockershim | 250 | 5 | 2.5 |")
