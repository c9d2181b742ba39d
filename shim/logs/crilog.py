"""Parses lines of a CRI log: `<time> <stdout|stderr> <P|F> <content>`. Pure.

F marks a whole line or the last piece of a line, P any other piece. If output ends without a newline, its last piece is
a P.
"""

from dataclasses import dataclass

STREAMS = (b"stdout", b"stderr")


@dataclass(frozen=True, slots=True)
class LineHead:
    """Time and stream of a line in a CRI log."""

    time: str
    stream: str

    @property
    def prefix(self) -> bytes:
        """The prefix of all lines with this time and stream."""
        return f"{self.time} {self.stream} ".encode()


def read_head(line: bytes) -> LineHead | None:
    """Return time and stream of a line; None if it is not a line of a CRI log."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[1] not in STREAMS or parts[2] not in {b"P", b"F"} or not parts[0].isascii():
        return None
    return LineHead(parts[0].decode(), parts[1].decode())


def first_time(lines: bytes) -> str:
    """Return the time of the first line; `lines` is not empty."""
    return lines[: lines.index(b" ")].decode()


def last_time(lines: bytes) -> str:
    """Return the time of the last line; `lines` is not empty, and each line ends with a newline."""
    return first_time(lines[lines.rfind(b"\n", 0, -1) + 1 :])
