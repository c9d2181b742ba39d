"""The figures of `integration.bench.scale`, as a table and as an SVG with a panel for each figure. Pure."""

from collections.abc import Callable, Iterator, Sequence
from html import escape

import msgspec

READS = ("ListContainers", "ListPodSandbox", "ContainerStatus", "ListContainerStats")
EXEC = "ExecSync"

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.head { font-size: 17px; font-weight: 600 }
.what { font-weight: 600 }
.card { fill: #ffffff; stroke: #d0d7de }
.axis { stroke: #d0d7de }
.line { fill: none; stroke: #2f6fdb; stroke-width: 2 }
.dot { fill: #2f6fdb }
.foreign { fill: #d4702a }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .card { fill: #161b22; stroke: #30363d }
  .axis { stroke: #30363d }
  .line { stroke: #5b93f0 } .dot { fill: #5b93f0 } .foreign { fill: #e0823d }
}
"""
_WIDTH, _HEAD, _COLUMNS = 760, 74, 2
_PANEL_WIDTH, _PANEL_HEIGHT, _MARGIN = 380, 150, 24
_PLOT_TOP, _PLOT_BOTTOM, _PLOT_RIGHT = 34, 118, 320


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one size of the node."""

    server: str
    pods: int
    foreign: int
    """Stopped containers that are not the kubelet's."""
    start_seconds: float | None
    """From the start of the server to a list of all containers; None for a server that is not restarted."""
    rss_mib: float
    core_percent: float
    """Processor time of the server, without the programs that it starts."""
    took_ms: dict[str, tuple[float, float]]
    """Median and 99th percentile of each call, by its name."""


_PANELS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    ("start of the server, s", lambda step: step.start_seconds or 0.0),
    ("memory, MiB", lambda step: step.rss_mib),
    ("processor time while a kubelet asks, %", lambda step: step.core_percent),
    *((f"{name}, median ms", lambda step, name=name: step.took_ms[name][0]) for name in (*READS, EXEC)),
)


def as_table(steps: Sequence[Step]) -> str:
    """Return the figures as a table in Markdown."""
    head = [
        "server",
        "pods",
        "foreign",
        "start, s",
        "memory, MiB",
        "processor, %",
        *(f"{name}, ms" for name in (*READS, EXEC)),
    ]
    rows = [
        [
            each.server,
            str(each.pods),
            str(each.foreign),
            "-" if each.start_seconds is None else f"{each.start_seconds:.1f}",
            f"{each.rss_mib:.0f}",
            f"{each.core_percent:.1f}",
            *("{:.1f} / {:.1f}".format(*each.took_ms[name]) for name in (*READS, EXEC)),
        ]
        for each in steps
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def drawn(steps: Sequence[Step], *, head: str, below: str) -> str:
    """Return the picture; `head` and `below` are its first two lines."""
    rows = -(-len(_PANELS) // _COLUMNS)
    height = _HEAD + rows * _PANEL_HEIGHT + _MARGIN
    size = f'width="{_WIDTH}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {size} role="img">',
        f"<title>{escape(head)}</title>",
        f"<style>\n{_STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(_MARGIN, 34, head, kind="head"),
        _text(_MARGIN, 56, below),
    ]
    for number, (what, value) in enumerate(_PANELS):
        row, column = divmod(number, _COLUMNS)
        x, y = column * _PANEL_WIDTH + _MARGIN, _HEAD + row * _PANEL_HEIGHT
        lines += _panel([(step, value(step)) for step in steps], what=what, x=x, y=y)
    return "\n".join([*lines, "</svg>", ""])


def _panel(points: Sequence[tuple[Step, float]], *, what: str, x: int, y: int) -> Iterator[str]:
    """Yield a panel with a line over the numbers of pods, and a dot for the step with foreign containers."""
    most_pods, most = max(step.pods for step, _ in points), max(value for _, value in points) or 1.0
    yield _text(x, y + 20, what, kind="what")
    yield f'<line class="axis" x1="{x}" y1="{y + _PLOT_BOTTOM}" x2="{x + _PLOT_RIGHT}" y2="{y + _PLOT_BOTTOM}"/>'
    places = [
        (
            step,
            value,
            x + _PLOT_RIGHT * step.pods / most_pods,
            y + _PLOT_BOTTOM - (_PLOT_BOTTOM - _PLOT_TOP) * value / most,
        )
        for step, value in points
    ]
    own = " ".join(f"{left:.1f},{top:.1f}" for step, _, left, top in places if not step.foreign)
    yield f'<polyline class="line" points="{own}"/>'
    for step, value, left, top in places:
        kind = "foreign" if step.foreign else "dot"
        yield f'<circle class="{kind}" cx="{left:.1f}" cy="{top:.1f}" r="3"/>'
        if not step.foreign:
            yield _text(left, y + _PLOT_BOTTOM + 16, str(step.pods), anchor="middle")
            yield _text(left, top - 6, _figure(value), anchor="middle")


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "") -> str:
    more = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(text)}</text>'
