"""The panels of the dashboard, and what their queries answered while they were recorded."""

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
"""What Grafana takes for points 15 s apart, as they are scraped: four of them."""


class Series(msgspec.Struct, frozen=True):
    """One series: its labels, and a value at each step, None where there is none."""

    labels: dict[str, str]
    values: list[float | None]

    @property
    def present(self) -> list[float]:
        """The values that are there."""
        return [value for value in self.values if value is not None]


class Event(msgspec.Struct, frozen=True):
    """What was done to the node, and when, in seconds from the first point."""

    seconds: int
    what: str


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has shown. `queries` has the series of each query of the dashboard, by the query as it is there."""

    docker: str
    prometheus: str
    step: int
    """Seconds between two points."""
    points: int
    events: list[Event]
    queries: dict[str, list[Series]]

    @property
    def seconds(self) -> int:
        """From the first point to the last."""
        return self.step * (self.points - 1)


class Target(msgspec.Struct, frozen=True, rename="camel"):
    """One query of a panel, and how its series are named."""

    expr: str
    legend_format: str

    def name(self, series: Series) -> str:
        """Return the name of a series in the legend, as Grafana makes it."""
        return re.sub(r"\{\{(\w+)\}\}", lambda found: series.labels.get(found[1], ""), self.legend_format)


class Panel(msgspec.Struct, frozen=True, rename="camel"):
    """One panel, as far as it is drawn."""

    title: str
    type: str
    grid_pos: dict[str, int]
    targets: list[Target] = []
    field_config: dict[str, Any] = {}
    options: dict[str, Any] = {}

    @property
    def unit(self) -> str:
        """The unit of its values, by Grafana's name."""
        return str(self.field_config["defaults"]["unit"])


class Row(msgspec.Struct, frozen=True):
    """A row of the dashboard, and its panels in their order."""

    title: str
    panels: list[Panel]

    @property
    def file(self) -> str:
        """The name of its picture."""
        words = re.findall(r"[a-z]+", self.title.lower().replace("'", ""))
        return f"dashboard-{'-'.join(words)}.svg"


def rows() -> list[Row]:
    """Return the dashboard."""
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
    """Return a query with what Grafana puts in the places of its variables, when all nodes are chosen."""
    return query.replace("$instance", ".*").replace("$__rate_interval", RATE_INTERVAL)


def load() -> Recording:
    """Return what is kept."""
    return msgspec.json.decode(RECORDED.read_bytes(), type=Recording)


def save(recording: Recording) -> None:
    """Keep it, with a line for each series."""
    head = msgspec.to_builtins(recording)
    found = head.pop("queries")
    lines = [f"{_text(name)}: {_text(value)}," for name, value in head.items()]
    blocks = [
        f"{_text(query)}: [\n" + ",\n".join(_text(each) for each in series) + "\n]" for query, series in found.items()
    ]
    RECORDED.write_text("\n".join(["{", *lines, '"queries": {', ",\n".join(blocks), "}}"]) + "\n")


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
