"""A reader of CRI logs, as strict as the conformance suite's."""

import re
from dataclasses import dataclass
from pathlib import Path

PIECE = 16 << 10
"""Bytes after which Docker splits a line."""
COUNT = "i=0; while [ $i -lt {lines} ]; do echo $i; [ $((i % 100)) = 0 ] && sleep 0.02; i=$((i+1)); done"
"""A shell script that prints this many numbers, slowly enough to be interrupted."""
LINES = 10_000
"""The usual number of lines of COUNT."""

_LINE = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z) (stdout|stderr) ([PF]) ([^\n]*)\n")


@dataclass(frozen=True, slots=True)
class Line:
    """A record of a CRI log."""

    time: str
    stream: str
    tag: str
    content: bytes


def read(path: Path) -> list[Line]:
    """Read a log that is not being written; AssertionError for a byte outside of records."""
    return parse(path.read_bytes())


def so_far(path: Path) -> list[Line]:
    """Read a log that is being written, up to the last whole record: a reader can see part of a write."""
    data = path.read_bytes()
    return parse(data[: data.rfind(b"\n") + 1])


def parse(data: bytes) -> list[Line]:
    """Parse the bytes of a log."""
    lines, end = [], 0
    for match in _LINE.finditer(data):
        assert match.start() == end, f"not a record: {data[end : match.start()][:200]!r}"
        end = match.end()
        lines.append(Line(match[1].decode(), match[2].decode(), match[3].decode(), match[4]))
    assert end == len(data), f"not a record: {data[end:][:200]!r}"
    return lines


def output(lines: list[Line], stream: str = "stdout") -> bytes:
    """Join the records of a stream to the container's output."""
    return b"".join(line.content + b"\n" * (line.tag == "F") for line in lines if line.stream == stream)


def with_rotated(path: Path) -> list[Line]:
    """Read a log and its rotated files, oldest first, which is the order of their names."""
    rotated = sorted(path.parent.glob(f"{path.name}.*"))
    # The newest file is missing if the container exited between a kubelet's rename and its reopen.
    return [line for found in [*rotated, path] if found.exists() for line in read(found)]


def numbers(lines: list[Line]) -> list[int]:
    """Return the numbers that COUNT printed."""
    return [int(line.content.split()[0]) for line in lines]
