"""The pictures of the dashboard agree with the recording, and no panel is empty."""

import re

import pytest

from integration.dashboard.__main__ import PICTURES
from integration.dashboard.draw import picture
from integration.dashboard.recording import RECORDED, Panel, Recording, Row, load, queries, rows
from tests.integration_dashboard.svg import lines, texts

PAGE = PICTURES.parent / "dashboard.md"
MOST_BYTES = 60 << 10
MOST_RECORDED_BYTES = 300 << 10
ROWS = pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)
PANELS = pytest.mark.parametrize(
    "panel", [each for row in rows() for each in row.panels], ids=lambda panel: panel.title
)

ZERO = {"Blocked logs": "0 is what a node that is well shows; the disk of the run was not full"}
"""Panels whose numbers were all 0, and why."""


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return load()


@ROWS
def test_a_picture_agrees_with_the_recording(row: Row, recorded: Recording) -> None:
    text = (PICTURES / row.file).read_text()

    assert text == picture(row, recorded), "run make dashboard-pictures"
    assert len(text.encode()) <= MOST_BYTES


@ROWS
def test_the_page_shows_the_picture_below_its_row(row: Row) -> None:
    assert f"\n## {row.title}\n\n![{row.title}](pictures/{row.file})\n" in PAGE.read_text()


def test_there_are_no_other_pictures_and_queries(recorded: Recording) -> None:
    assert {path.name for path in PICTURES.glob("dashboard-*")} == {row.file for row in rows()}
    assert recorded.queries.keys() == {*queries()}


@PANELS
def test_each_query_of_a_panel_has_series(panel: Panel, recorded: Recording) -> None:
    for target in panel.targets:
        assert any(series.present for series in recorded.queries[target.expr]), target.expr


@PANELS
def test_a_panel_shows_more_than_0(panel: Panel, recorded: Recording) -> None:
    found = [value for each in panel.targets for series in recorded.queries[each.expr] for value in series.present]

    assert any(found) != (panel.title in ZERO)


@ROWS
def test_a_picture_has_each_panel_and_each_series(row: Row, recorded: Recording) -> None:
    svg = (PICTURES / row.file).read_text()
    shown = texts(svg)
    plotted = [panel for panel in row.panels if panel.type == "timeseries"]
    named = [
        target.name(series)
        for panel in plotted
        for target in panel.targets
        for series in recorded.queries[target.expr]
        if series.present
    ]

    assert {panel.title for panel in row.panels} <= {*shown}
    assert {*named} <= {*shown}
    assert len(lines(svg)) == len(named)


def test_the_recording_is_small_and_names_no_machine(recorded: Recording) -> None:
    text = RECORDED.read_text()
    labels = [series.labels for found in recorded.queries.values() for series in found]

    assert len(text) <= MOST_RECORDED_BYTES
    assert {each["instance"] for each in labels if "instance" in each} == {"127.0.0.1:9180"}
    assert re.findall(r"/(?:home|root|run|tmp|var|work)\b", text) == []
    assert all(len(series.values) == recorded.points for found in recorded.queries.values() for series in found)
