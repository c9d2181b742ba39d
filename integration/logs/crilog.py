"""Reading CRI logs, as strictly as the conformance suite does."""

import re
from dataclasses import dataclass
from pathlib import Path

PIECE = 16 << 10
"""Bytes after which Docker cuts a line."""
COUNT = "i=0; while [ $i -lt {lines} ]; do echo $i; [ $((i % 100)) = 0 ] && sleep 0.02; i=$((i+1)); done"
"""A script for the shell that counts up in so many lines; slow enough to be interrupted."""
LINES = 10_000
"""An ordinary number of these."""

_LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z) (stdout|stderr) ([PF]) ([^\n]*)\n")


@dataclass(frozen=True, slots=True)
class Line:
    """One record of a CRI log."""

    time: str
    stream: str
    tag: str
    content: bytes


def read(path: Path) -> list[Line]:
    """Read a whole log that is not being written; AssertionError for anything in it that is no record."""
    return parse(path.read_bytes())


def so_far(path: Path) -> list[Line]:
    """Read a log that is being written: the kernel shows others the first pages of a write before its last."""
    data = path.read_bytes()
    return parse(data[: data.rfind(b"\n") + 1])


def parse(data: bytes) -> list[Line]:
    """Return records of a log's bytes."""
    lines, end = [], 0
    for match in _LINE.finditer(data):
        assert match.start() == end, f"not a record: {data[end : match.start()][:200]!r}"
        end = match.end()
        lines.append(Line(match[1].decode(), match[2].decode(), match[3].decode(), match[4]))
    assert end == len(data), f"not a record: {data[end:][:200]!r}"
    return lines


def output(lines: list[Line], stream: str = "stdout") -> bytes:
    """Return what a container has written to a stream, put together again."""
    return b"".join(line.content + b"\n" * (line.tag == "F") for line in lines if line.stream == stream)


def with_rotated(path: Path) -> list[Line]:
    """Read a log with all it was rotated to, oldest first, which is the order of their names."""
    rotated = sorted(path.parent.glob(f"{path.name}.*"))
    # The file itself is missing when the container has ended between a kubelet's rename and its reopen.
    return [line for found in [*rotated, path] if found.exists() for line in read(found)]


def numbers(lines: list[Line]) -> list[int]:
    """Return the numbers that COUNT has written."""
    return [int(line.content.split()[0]) for line in lines]
