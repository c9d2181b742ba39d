"""The figures as an SVG with bars of all sides. Pure."""

from collections.abc import Iterator
from html import escape

from integration.bench import figures
from integration.bench.figures import FLOOR, SERVER, Compared
from integration.bench.report import Report

_WORDS = {FLOOR: "Docker and CNI directly", SERVER: "pydockershim"}
_WHAT = {
    figures.START: "start of a pod: RunPodSandbox, CreateContainer, StartContainer",
    figures.STOP: "stop and removal of a pod",
}
_CALLS = ("ExecSync", "ListContainers", "ListPodSandbox")

_WIDTH, _MARGIN = 760, 24
_LEFT = 190
"""x of the bars."""
_LONGEST = 460
_TITLE, _BAR, _GAP, _HEAD = 24, 20, 14, 74

# The card has a background, so that the text is legible on every page. Viewers without dark mode show the light theme.
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.head { font-size: 17px; font-weight: 600 }
.what { font-weight: 600 }
.card { fill: #ffffff; stroke: #d0d7de }
.side0 { fill: #2f6fdb } .side1 { fill: #8c959f } .side2 { fill: #d4702a } .side3 { fill: #2c9a5b }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .card { fill: #161b22; stroke: #30363d }
  .side0 { fill: #5b93f0 } .side1 { fill: #768390 } .side2 { fill: #e0823d } .side3 { fill: #3fb46f }
}
"""
_COLOURS = 4


def drawn(report: Report, *, date: str) -> str:
    """Return the picture; `date` is the date of the figures."""
    rows = {row.name: row for row in report.compared}
    names = (figures.START, figures.many(report.at_once), figures.STOP, *_CALLS)
    groups = [rows[name] for name in names]
    sides = [SERVER, FLOOR, *(other.name for other in report.others)]
    height = _HEAD + sum(_height(row) for row in groups) + _MARGIN
    size = f'width="{_WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {size} role="img">',
        f"<title>{escape(_head(report))}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(_MARGIN, 34, _head(report), kind="head"),
        _text(_MARGIN, 56, f"{_machine(report)}, {date}; medians in ms, each group with a scale of its own"),
    ]
    top = _HEAD
    words = {**_WHAT, figures.many(report.at_once): f"start of {figures.many(report.at_once)}, until the last one runs"}
    for row in groups:
        lines += _group(row, sides, title=words.get(row.name, row.name), top=top)
        top += _height(row)
    return "\n".join([*lines, "</svg>", ""])


def _head(report: Report) -> str:
    return f"Times of a pod's calls, with Docker Engine {report.engine.version}"


def _machine(report: Report) -> str:
    cpus = report.machine.cpus
    return f"{cpus} CPU{'s' if cpus > 1 else ''}"


def _height(row: Compared) -> int:
    return _TITLE + _BAR * len(row.took_ms) + _GAP


def _group(row: Compared, sides: list[str], *, title: str, top: int) -> Iterator[str]:
    yield _text(_MARGIN, top + 15, title, kind="what")
    longest = max(row.took_ms.values())
    y = top + _TITLE
    for number, side in enumerate(sides):
        if side not in row.took_ms:
            continue
        took = row.took_ms[side]
        width = max(1.0, _LONGEST * took / longest)
        yield _text(_LEFT - 8, y + 13, _WORDS.get(side, side), anchor="end")
        yield (
            f'<rect class="side{number % _COLOURS}" x="{_LEFT}" y="{y + 1}" width="{width:.1f}" height="{_BAR - 4}" '
            'rx="2"/>'
        )
        yield _text(_LEFT + width + 6, y + 13, _figure(took))
        y += _BAR


def _figure(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}"


def _text(x: float, y: int, text: str, *, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.0f}" y="{y}"{more}>{escape(text)}</text>'
