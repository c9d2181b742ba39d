"""Records into lines of a CRI log: `<time> <stdout|stderr> <P|F> <content>`. Pure.

F is a line, P a piece of one that is continued. The last piece of output that ends without a newline stays P, since
nothing was written that would end it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shim.logs.decode import Record

STREAMS = (b"stdout", b"stderr")


def encode(records: list[Record]) -> bytes:
    """Give one line for each record, in order."""
    text = _joined(records)
    if text.count("\n") != len(records):
        # Docker ends a record at each newline; one inside would make a line that no reader of CRI logs takes.
        text = _joined([piece for record in records for piece in _split(record)])
    return text.encode()


def _joined(records: list[Record]) -> str:
    return "".join(
        [
            f"{record.time} {record.stream} F {record.log}"
            if record.log[-1:] == "\n"
            else f"{record.time} {record.stream} P {record.log}\n"
            for record in records
        ]
    )


def _split(record: Record) -> Iterator[Record]:
    *whole, rest = record.log.split("\n")
    for piece in [*(line + "\n" for line in whole), *([rest] if rest or not whole else [])]:
        yield Record(piece, record.stream, record.time)


@dataclass(frozen=True, slots=True)
class Written:
    """The head of a line that is in a CRI log."""

    time: str
    stream: str

    @property
    def prefix(self) -> bytes:
        """How all lines of this time and stream begin."""
        return f"{self.time} {self.stream} ".encode()


def read_head(line: bytes) -> Written | None:
    """Read back time and stream of a line; None for one that is not of a CRI log."""
    parts = line.split(b" ", 3)
    if len(parts) != 4 or parts[1] not in STREAMS or parts[2] not in {b"P", b"F"} or not parts[0].isascii():
        return None
    return Written(parts[0].decode(), parts[1].decode())
