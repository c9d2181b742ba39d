"""A recording of a terminal as an SVG that plays: lines come at the moments at which they came.

`make demo-picture` pipes `make demo` through this. Any other command's output would do.
"""

import argparse
import html
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_COLUMNS = 110
_LETTER = 8.4
_ROW = 19
_MARGIN = 18
_BAR = 30
_LONGEST_PAUSE = 1.5
"""Seconds of a pause that are shown; set-up takes longer, and nobody wants to watch it."""
_SHORTEST = 0.06
"""Seconds between lines that came at once, so that the eye sees them come."""
_REST = 8.0
"""Seconds that the last line is shown before the picture begins again."""
_STYLE = (
    "rect{fill:#10151c}.bar{fill:#1d2530}"
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d5dde6;white-space:pre}"
    ".title{fill:#8b98a8;text-anchor:middle}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output, and the second at which it came."""

    at: float
    text: str


def record(lines: Iterable[str]) -> Iterator[Line]:
    """Yield lines as they come, with the seconds since the first."""
    began: float | None = None
    for text in lines:
        now = time.monotonic()
        began = now if began is None else began
        yield Line(now - began, text.rstrip("\n"))


def picture(lines: Sequence[Line], *, command: str) -> str:
    """Return the SVG: after `command`, each line appears at its moment, long pauses shortened; then it starts again."""
    shown = [Line(0.0, f"# {command}"), *_paced(lines)]
    duration = shown[-1].at + _REST
    width = _COLUMNS * _LETTER + 2 * _MARGIN
    height = _BAR + len(shown) * _ROW + 2 * _MARGIN
    rows = "".join(_row(number, line, duration) for number, line in enumerate(shown))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{html.escape(command, quote=True)} in a terminal">\n<style>{_STYLE}</style>\n'
        f'<rect width="{width:g}" height="{height:g}" rx="8"/>\n'
        f'<rect class="bar" width="{width:g}" height="{_BAR}" rx="8"/>\n'
        f'<text class="title" x="{width / 2:g}" y="{_BAR - 10}">{html.escape(command)}</text>\n{rows}</svg>\n'
    )


def _paced(lines: Sequence[Line]) -> Iterator[Line]:
    at, before = 1.0, 0.0
    for line in lines:
        at += min(max(line.at - before, _SHORTEST), _LONGEST_PAUSE)
        before = line.at
        yield Line(at, line.text)


def _row(number: int, line: Line, duration: float) -> str:
    """Return a line that is invisible until its moment, in each round. Without animations it is visible."""
    y = _BAR + _MARGIN + (number + 1) * _ROW - 5
    appears = line.at / duration
    animation = (
        f'<animate attributeName="opacity" values="0;1;1" keyTimes="0;{appears:.4f};1" calcMode="discrete" '
        f'dur="{duration:.2f}s" repeatCount="indefinite"/>'
        if line.at
        else ""
    )
    return f'<text x="{_MARGIN}" y="{y}">{html.escape(line.text[:_COLUMNS])}{animation}</text>\n'


def main() -> int:
    """Record standard input, show it meanwhile, and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo_picture", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--command", default="make demo", help="what the picture shows as typed")
    given = parser.parse_args()
    lines = []
    for line in record(sys.stdin):
        print(line.text, flush=True)
        lines.append(line)
    if not lines:
        print("nothing came on standard input", file=sys.stderr)
        return 1
    given.path.write_text(picture(lines, command=given.command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
