"""The format of Docker's `json-file` log. Pure, except for reading backwards.

A record is a line `{"log":"...","stream":"stdout","time":"..."}`, perhaps with more keys. Docker splits long lines of
output every 16 KiB, so `log` ends in a newline or is a piece of a longer line. All pieces of a line have the time of
its first byte. Docker replaces bytes that are not UTF-8 with U+FFFD.
"""

import posixpath
from collections.abc import Iterator
from typing import Literal

import msgspec

from shim.logs.crilog import LineHead
from shim.logs.format import CHUNK, Format, Lines, Marks
from shim.logs.lines import lines_backwards

_BEGIN = b'{"log":"'
"""Prefix of every record. It cannot occur inside a record, where quotes are escaped."""


class Record(msgspec.Struct, frozen=True, gc=False):
    """A line of Docker's file: a line of output, or a piece of a line."""

    log: str
    stream: Literal["stdout", "stderr"]
    time: str
    """RFC 3339, UTC, with up to nine decimals of a second and no trailing zeros."""


_DECODER = msgspec.json.Decoder(Record)


def path(directory: str) -> str:
    """Implement `shim.logs.format.Format.path`."""
    return posixpath.join(directory, f"{posixpath.basename(directory)}-json.log")


def whole(data: bytes) -> int:
    """Implement `shim.logs.format.Format.whole`."""
    # A line of CHUNK bytes is garbage from a full disk or a crash, so skip it.
    return data.rfind(b"\n") + 1 or (len(data) if len(data) >= CHUNK else 0)


def lines(records: bytes) -> Lines:
    """Implement `shim.logs.format.Format.lines`."""
    try:
        read = _DECODER.decode_lines(records)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _one_by_one(records)
    return Lines(encode(read), len(read))


def each(records: bytes) -> Iterator[tuple[int, bytes]]:
    """Implement `shim.logs.format.Format.each`."""
    end = 0
    for line in records.split(b"\n")[:-1]:
        end += len(line) + 1
        record = decode_line(line)
        if record is not None:
            yield end, encode([record])


def marks(head: LineHead) -> Marks:
    """Implement `shim.logs.format.Format.marks`."""
    return Marks(time=f'"time":"{head.time}"'.encode(), stream=f'"stream":"{head.stream}"'.encode())


JSON_FILE = Format(
    path=path,
    path_is_reported=True,
    made_at_start=False,
    whole=whole,
    lines=lines,
    each=each,
    backwards=lines_backwards,
    additions=("labels", "labels-regex", "env", "env-regex", "tag"),
    marks=marks,
)


def decode_line(line: bytes) -> Record | None:
    """Decode a line; return None if it is unreadable.

    After a torn record Docker continues on the same line. So decode the last record of the line.
    """
    begin = line.rfind(_BEGIN)
    if begin < 0:
        return None
    try:
        return _DECODER.decode(line[begin:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _one_by_one(records: bytes) -> Lines:
    read = [decode_line(line) for line in records.split(b"\n") if line]
    found = [record for record in read if record is not None]
    return Lines(encode(found), len(found), unreadable=len(read) - len(found))


def encode(records: list[Record]) -> bytes:
    """Return the lines of the CRI log for `records`, in order."""
    text = _join(records)
    if text.count("\n") != len(records):
        # Docker ends a record at each newline of the output. A damaged record may have more newlines, in its content or
        # time, which would give lines that readers of CRI logs reject.
        text = _join([piece for record in records for piece in _split(record)])
    return text.encode()


def _join(records: list[Record]) -> str:
    return "".join(
        [
            f"{record.time} {record.stream} F {record.log}"
            if record.log[-1:] == "\n"
            else f"{record.time} {record.stream} P {record.log}\n"
            for record in records
        ]
    )


def _split(record: Record) -> Iterator[Record]:
    *begun, rest = record.log.split("\n")
    time = record.time.replace("\n", " ")
    for piece in [*(line + "\n" for line in begun), *([rest] if rest or not begun else [])]:
        yield Record(piece, record.stream, time)
