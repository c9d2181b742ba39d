"""Drawing of lines and numbers."""

import re

import pytest

from integration.dashboard.draw import picture
from integration.dashboard.recording import Event, Panel, Recording, Row, Series, Target
from tests.integration_dashboard.svg import lines, texts


def panel(kind: str, **defaults: object) -> Panel:
    settings = {"unit": "short", "mappings": [], "thresholds": {"steps": [{"color": "green", "value": None}]}}
    place = {"x": 0, "y": 1, "w": 12, "h": 8}
    return Panel("P", kind, place, [Target("q", "{{a}} {{b}}")], {"defaults": {**settings, **defaults}})


def drawn(made: Panel, *series: Series) -> str:
    points = len(series[0].values)
    found = Recording(
        docker="1", prometheus="2", step=30, points=points, events=[Event(30, "x")], queries={"q": [*series]}
    )
    return picture(Row("R", [made]), found)


def test_a_line_has_gaps_and_points_for_isolated_values() -> None:
    svg = drawn(panel("timeseries"), Series({"a": "<x>", "b": "y"}, [1, 2, None, 3, None]))

    [line] = lines(svg)
    assert re.sub(r"[\d.]+ [\d.]+", "P", line) == "MPLPMPh0"
    assert "<x> y" in texts(svg)


@pytest.mark.parametrize(("values", "shown"), [([0, 1], "up"), ([1, 0, None], "down")])
def test_a_number_panel_shows_the_mapped_last_value(values: list[float | None], shown: str) -> None:
    mapped = {"0": {"text": "down", "color": "red"}, "1": {"text": "up", "color": "green"}}
    svg = drawn(panel("stat", mappings=[{"type": "value", "options": mapped}]), Series({}, values))

    assert shown in texts(svg)
