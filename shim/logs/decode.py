"""Docker's json-file log into records. Pure.

A line is `{"log":"...","stream":"stdout","time":"..."}`, perhaps with further keys. `log` ends in a newline, or is a
piece of a longer line: Docker cuts at 16 KiB. All pieces of a line carry the time of its first byte. Bytes that are
not UTF-8 are gone already: Docker writes U+FFFD for each.
"""

from dataclasses import dataclass
from typing import Literal

import msgspec

MAX_LINE = 1 << 18
"""More bytes than a line can have: 16 KiB of content, each byte escaped as six, and Docker's keys."""

_BEGIN = b'{"log":"'
"""How every line begins, and nothing inside one: there a quote is escaped."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """One line of Docker's file: a line of output, or a piece of one."""

    log: str
    stream: Literal["stdout", "stderr"]
    time: str
    """RFC 3339, UTC, up to nine digits of a second without trailing zeros."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What could be read, in order."""

    records: list[Record]
    unreadable: int = 0
    """Lines from which nothing could be read: a daemon that crashes, or finds the disk full, leaves a torn one."""


_DECODER = msgspec.json.Decoder(Record)


def decode(lines: bytes) -> Decoded:
    """Read whole lines, each with its newline."""
    try:
        return Decoded(_DECODER.decode_lines(lines))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_one_by_one(lines)


def decode_line(line: bytes) -> Record | None:
    """Read one line; None for one that cannot be read.

    Behind a torn line Docker goes on without a newline, so the whole record at its end is read.
    """
    begin = line.rfind(_BEGIN)
    if begin < 0:
        return None
    try:
        return _DECODER.decode(line[begin:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _decode_one_by_one(lines: bytes) -> Decoded:
    read = [decode_line(line) for line in lines.split(b"\n") if line]
    records = [record for record in read if record is not None]
    return Decoded(records, unreadable=len(read) - len(records))
