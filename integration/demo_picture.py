"""A recording of a terminal as an animated SVG: each line appears when it was printed.

`make demo-picture` pipes `make demo` through this module; the output of any other command works too.
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
"""Longest pause shown, in seconds; set-up takes longer, and nobody wants to watch it."""
_SHORTEST = 0.06
"""Shortest pause shown, in seconds, so that simultaneous lines appear one after the other."""
_REST = 8.0
"""Seconds that the last line is shown before the animation repeats."""
_STYLE = (
    "rect{fill:#10151c}.bar{fill:#1d2530}"
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d5dde6;white-space:pre}"
    ".title{fill:#8b98a8;text-anchor:middle}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output, and its time in seconds."""

    at: float
    text: str


def record(lines: Iterable[str]) -> Iterator[Line]:
    """Yield lines as they arrive, with the seconds since the first."""
    began: float | None = None
    for text in lines:
        now = time.monotonic()
        began = now if began is None else began
        yield Line(now - began, text.rstrip("\n"))


def picture(lines: Sequence[Line], *, command: str) -> str:
    """Return an SVG that shows `command`, then each line at its time with long pauses shortened, and repeats."""
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
    """Return a line that appears at its time in each repetition; it is visible where animations are not supported."""
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
    """Record standard input, print it meanwhile, and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo_picture", description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--command", default="make demo", help="command line that the picture shows")
    given = parser.parse_args()
    lines = []
    for line in record(sys.stdin):
        print(line.text, flush=True)
        lines.append(line)
    if not lines:
        print("standard input is empty", file=sys.stderr)
        return 1
    given.path.write_text(picture(lines, command=given.command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
