"""The panels of the dashboard, and the recorded answers to their queries."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "packaging/monitoring/dashboard.json"
RECORDED = Path(__file__).with_name("recorded.json")
RATE_INTERVAL = "1m"
"""Grafana's value for points 15 s apart, the scrape interval: four of them."""


class Series(msgspec.Struct, frozen=True):
    """A series: its labels, and a value at each step, None if missing."""

    labels: dict[str, str]
    values: list[float | None]

    @property
    def present(self) -> list[float]:
        """The values that exist."""
        return [value for value in self.values if value is not None]


class Event(msgspec.Struct, frozen=True):
    """An event on the node, and its time in seconds from the first point."""

    seconds: int
    what: str


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a run. `queries` maps each query, as written in the dashboard, to its series."""

    docker: str
    prometheus: str
    step: int
    """Seconds between two points."""
    points: int
    events: list[Event]
    queries: dict[str, list[Series]]

    @property
    def seconds(self) -> int:
        """Seconds from the first point to the last."""
        return self.step * (self.points - 1)


class Target(msgspec.Struct, frozen=True, rename="camel"):
    """A query of a panel, and the format of its series' names."""

    expr: str
    legend_format: str

    def name(self, series: Series) -> str:
        """Return the name of a series in the legend, as Grafana formats it."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), self.legend_format)


class Panel(msgspec.Struct, frozen=True, rename="camel"):
    """A panel; only the fields needed to draw it."""

    title: str
    type: str
    grid_pos: dict[str, int]
    targets: list[Target] = []
    field_config: dict[str, Any] = {}
    options: dict[str, Any] = {}

    @property
    def unit(self) -> str:
        """The unit of its values, in Grafana's notation."""
        return str(self.field_config["defaults"]["unit"])


class Row(msgspec.Struct, frozen=True):
    """A row of the dashboard, and its panels in order."""

    title: str
    panels: list[Panel]

    @property
    def file(self) -> str:
        """The name of its picture."""
        words = re.findall(r"[a-z]+", self.title.lower().replace("'", ""))
        return f"dashboard-{'-'.join(words)}.svg"


def rows() -> list[Row]:
    """Return the rows of the dashboard."""
    found: list[Row] = []
    for panel in msgspec.convert(json.loads(DASHBOARD.read_text())["panels"], list[Panel]):
        if panel.type == "row":
            found.append(Row(panel.title, []))
        else:
            found[-1].panels.append(panel)
    return found


def queries() -> Iterator[str]:
    """Yield the query of each line and number of the dashboard."""
    for row in rows():
        for panel in row.panels:
            for target in panel.targets:
                yield target.expr


def complete(query: str) -> str:
    """Return a query with Grafana's values for its variables when all nodes are selected."""
    return query.replace("$instance", ".*").replace("$__rate_interval", RATE_INTERVAL)


def load() -> Recording:
    """Return the stored recording."""
    return msgspec.json.decode(RECORDED.read_bytes(), type=Recording)


def save(recording: Recording) -> None:
    """Store a recording, with a line for each series."""
    head = msgspec.to_builtins(recording)
    found = head.pop("queries")
    lines = [f"{_text(name)}: {_text(value)}," for name, value in head.items()]
    blocks = [
        f"{_text(query)}: [\n" + ",\n".join(_text(each) for each in series) + "\n]" for query, series in found.items()
    ]
    RECORDED.write_text("\n".join(["{", *lines, '"queries": {', ",\n".join(blocks), "}}"]) + "\n")


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
