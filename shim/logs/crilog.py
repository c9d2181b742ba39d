"""Lines of a CRI log: `<time> <stdout|stderr> <P|F> <content>`. Pure.

F is a line, P a piece of one that is continued. The last piece of output that ends without a newline stays P, since
nothing was written that would end it.
"""

from dataclasses import dataclass

STREAMS = (b"stdout", b"stderr")


@dataclass(frozen=True, slots=True)
class Written:
    """Time and stream of a line in a CRI log."""

    time: str
    stream: str

    @property
    def prefix(self) -> bytes:
        """The prefix of all lines of this time and stream."""
        return f"{self.time} {self.stream} ".encode()


def read_head(line: bytes) -> Written | None:
    """Return time and stream of a line; None for one that is not of a CRI log."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[1] not in STREAMS or parts[2] not in {b"P", b"F"} or not parts[0].isascii():
        return None
    return Written(parts[0].decode(), parts[1].decode())


def first_time(lines: bytes) -> str:
    """Return the time of the first of some lines, at least one."""
    return lines[: lines.index(b" ")].decode()


def last_time(lines: bytes) -> str:
    """Return the time of the last of some lines, at least one, each with its newline."""
    return first_time(lines[lines.rfind(b"\n", 0, -1) + 1 :])
