"""Rows of the dashboard as SVG: Prometheus's answers, in panels with Grafana's layout."""

import html
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from integration.dashboard.recording import Panel, Recording, Row, Series
from integration.dashboard.scales import Scale, scale, text

_COLUMN = 50
"""Width of one of the dashboard's 24 columns, in pixels."""
_WIDTH = 24 * _COLUMN
_GAP = 8
_PADDING = 12
_TITLE = 28
_STAT = 92
_PLOT = 170
_TIMES = 24
"""Height below a plot for the marks of its time axis."""
_VALUES = 74
"""Width left of a plot for the marks of its value axis."""
_ENTRY = 15
_FIGURE = 70
"""Width of a figure in a legend."""
_LETTER = 6
"""Approximate width of a letter in a legend."""
_CAPTION = 24
_MINUTES = 60

_LIGHT = ("1f62c4", "c4560a", "2b7f3a", "c4162a", "7d3fb5", "0b7f86", "8a5a1c", "c2347f", "6f7100", "5f6b76")
_DARK = ("6ea8ff", "ff9a4a", "63c574", "ff7383", "c197f5", "4fc9d0", "d6a96a", "f58ac0", "c9c94a", "a5b1bd")
_DASHES = ("none", "6 3", "2 2")
"""Dashes that distinguish series of the same colour."""

_THRESHOLDS = {"green": 2, "orange": 1, "red": 3}
"""Colours of numbers, as indices of _LIGHT and _DARK."""


def _theme(background: str, panel: str, edge: str, ink: str, faint: str, colours: Sequence[str]) -> str:
    lines = "".join(f".c{n}{{stroke:#{each}}}.f{n}{{fill:#{each}}}" for n, each in enumerate(colours))
    return (
        f".b{{fill:{background}}}.p{{fill:{panel};stroke:{edge}}}.g{{stroke:{edge}}}.e{{stroke:{faint}}}"
        f"text{{fill:{ink}}}.m{{fill:{faint}}}{lines}"
    )


_STYLE = (
    "text{font-family:Inter,Helvetica,Arial,sans-serif;font-size:11px}.t{font-size:13px;font-weight:600}"
    ".n{font-size:32px;font-weight:600;text-anchor:middle}.r{text-anchor:end}.k{text-anchor:middle}"
    ".l{fill:none;stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}"
    ".e{stroke-dasharray:2 4;fill:none}.s{font-size:9px}"
    + "".join(f".d{n}{{stroke-dasharray:{each}}}" for n, each in enumerate(_DASHES))
    + _theme("#f4f5f5", "#fff", "#dfe2e5", "#24292e", "#646c75", _LIGHT)
    + f"@media(prefers-color-scheme:dark){{{_theme('#111217', '#181b1f', '#31353b', '#d5d7db', '#989da5', _DARK)}}}"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Position and size of a panel, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class _Line:
    """A series of a panel: its name in the legend, its values, and the CSS classes of its colour and dashes."""

    name: str
    series: Series
    classes: str


def picture(row: Row, recording: Recording) -> str:
    """Return a row of the dashboard as SVG."""
    parts: list[str] = []
    y = float(_GAP)
    for _, group in itertools.groupby(row.panels, key=lambda panel: panel.grid_pos["y"]):
        panels = list(group)
        height = max(_height(panel, recording) for panel in panels)
        for panel in panels:
            width = panel.grid_pos["w"] * _COLUMN - _GAP
            place = _Place(panel.grid_pos["x"] * _COLUMN + _GAP / 2, y, width, height)
            parts.extend(_panel(panel, place, recording))
        y += height + _GAP
    caption = (
        "Drawn by pydockershim from what its Prometheus answered to the queries of dashboard.json; no screenshot of "
        f"Grafana. Docker Engine {recording.docker}, Prometheus {recording.prometheus}."
    )
    parts.append(_text(_PADDING, y + 10, caption, "m"))
    height = y + _CAPTION - _GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" '
        f'height="{height:g}" role="img"><title>{html.escape(row.title)}</title><style>{_STYLE}</style>'
        '<rect class="b" width="100%" height="100%"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _lines(panel: Panel, recording: Recording) -> list[_Line]:
    found = [(target.name(series), series) for target in panel.targets for series in recording.queries[target.expr]]
    return [
        _Line(name, series, f"c{number % len(_LIGHT)} d{number // len(_LIGHT) % len(_DASHES)}")
        for number, (name, series) in enumerate(found)
        if series.present
    ]


def _height(panel: Panel, recording: Recording) -> float:
    if panel.type == "stat":
        return _STAT
    lines = _lines(panel, recording)
    return _TITLE + _PLOT + _TIMES + _ENTRY * (1 + _entries(panel, lines)) + _PADDING


def _entries(panel: Panel, lines: Sequence[_Line]) -> int:
    """Return the number of rows in the legend."""
    return -(-len(lines) // _columns(panel, lines))


def _columns(panel: Panel, lines: Sequence[_Line]) -> int:
    wanted = 2 * _PADDING + _LETTER * max((len(line.name) for line in lines), default=0) + 2 * _FIGURE
    room = panel.grid_pos["w"] * _COLUMN - _GAP - _PADDING
    return max(1, min(len(lines), room // wanted))


def _panel(panel: Panel, place: _Place, recording: Recording) -> Iterator[str]:
    yield (
        f'<rect class="p" x="{place.x:g}" y="{place.y:g}" width="{place.width:g}" height="{place.height:g}" rx="3"/>'
    )
    yield _text(place.x + _PADDING, place.y + 19, panel.title, "t")
    lines = _lines(panel, recording)
    if panel.type == "stat":
        yield from _number(panel, place, lines)
    else:
        yield from _plot(panel, place, lines, recording)
        yield from _legend(panel, place, lines)


# --- numbers ----------------------------------------------------------------------------------------------


def _number(panel: Panel, place: _Place, lines: Sequence[_Line]) -> Iterator[str]:
    """Yield the last value of the first series, or its name; there is only one node."""
    if lines:
        value = lines[0].series.present[-1]
        shown, colour = _mapped(panel, value)
        if panel.options.get("textMode") == "name":
            shown = lines[0].name
        yield _text(place.x + place.width / 2, place.y + 66, shown, f"n f{_THRESHOLDS[colour]}")


def _mapped(panel: Panel, value: float) -> tuple[str, str]:
    """Return the text and colour of a value, from the panel's mappings or from its unit and thresholds."""
    defaults = panel.field_config["defaults"]
    for mapping in defaults["mappings"]:
        if found := mapping["options"].get(f"{value:g}"):
            return found["text"], found["color"]
    steps = defaults["thresholds"]["steps"]
    colour = next(step["color"] for step in reversed(steps) if step["value"] is None or value >= step["value"])
    return text(value, panel.unit), colour


# --- lines ------------------------------------------------------------------------------------------------


def _plot(panel: Panel, place: _Place, lines: Sequence[_Line], recording: Recording) -> Iterator[str]:
    left, top = place.x + _VALUES, place.y + _TITLE + 8
    width, height = place.width - _VALUES - _PADDING, _PLOT - 8
    axis = scale(max((max(line.series.present) for line in lines), default=0), panel.unit)
    yield from _value_axis(axis, left=left, top=top, width=width, height=height)
    yield from _time_axis(recording, left=left, top=top, width=width, height=height)
    for line in reversed(lines):  # the first series is on top
        path = _path(line.series.values, axis, left=left, top=top, width=width, height=height)
        yield f'<path class="l {line.classes}" d="{path}"/>'


def _value_axis(axis: Scale, *, left: float, top: float, width: float, height: float) -> Iterator[str]:
    for value, words in axis.marks:
        y = top + height * (1 - value / axis.top)
        yield f'<path class="g" d="M{left:g} {y:.1f}h{width:g}"/>'
        yield _text(left - 6, y + 4, words, "m r")


def _time_axis(recording: Recording, *, left: float, top: float, width: float, height: float) -> Iterator[str]:
    """Yield the minutes, and a numbered line for each event."""
    for minute in range(0, recording.seconds // _MINUTES + 1, 2):
        x = left + width * minute * _MINUTES / recording.seconds
        at_the_end = minute * _MINUTES == recording.seconds
        yield _text(x, top + height + 15, f"{minute} min" if minute else "0", "m r" if at_the_end else "m k")
    for number, event in enumerate(recording.events, 1):
        x = left + width * event.seconds / recording.seconds
        yield f'<path class="e" d="M{x:.1f} {top:g}v{height:g}"/>'
        yield _text(x, top - 2, str(number), "m k s")


def _path(values: Sequence[float | None], axis: Scale, *, left: float, top: float, width: float, height: float) -> str:
    """Return a path through the values, with gaps for missing values and points for isolated values."""
    words: list[str] = []
    before: float | None = None
    for number, value in enumerate(values):
        if value is not None:
            x = left + width * number / (len(values) - 1)
            y = top + height * (1 - value / axis.top)
            words.append(f"{'M' if before is None else 'L'}{x:.0f} {y:.1f}")
            alone = before is None and (number + 1 == len(values) or values[number + 1] is None)
            words.extend(["h0"] if alone else [])
        before = value
    return "".join(words)


def _legend(panel: Panel, place: _Place, lines: Sequence[_Line]) -> Iterator[str]:
    """Yield the names with the last and the largest value of each, as the panels are configured."""
    columns, entries = _columns(panel, lines), _entries(panel, lines)
    width = (place.width - _PADDING) / columns
    top = place.y + _TITLE + _PLOT + _TIMES + 8
    for number, line in enumerate(lines):
        column, below = divmod(number, entries)
        x, y = place.x + column * width, top + _ENTRY * (below + 1)
        right = x + width
        if below == 0:
            yield _text(right - _FIGURE, top, "last", "m r")
            yield _text(right, top, "max", "m r")
        yield f'<path class="l {line.classes}" d="M{x + _PADDING:g} {y - 4:g}h14"/>'
        yield _text(x + _PADDING + 20, y, line.name)
        present = line.series.present
        yield _text(right - _FIGURE, y, text(present[-1], panel.unit), "r")
        yield _text(right, y, text(max(present), panel.unit), "r")


def _text(x: float, y: float, words: str, classes: str = "") -> str:
    named = f' class="{classes}"' if classes else ""
    return f'<text{named} x="{x:.0f}" y="{y:.0f}">{html.escape(words, quote=False)}</text>'
