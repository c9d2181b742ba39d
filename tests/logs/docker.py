"""Writes logs as Docker does: the records of each logging driver, and rotation by rename."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from shim.base.times import ns_from_rfc3339
from shim.config.model import DockerLogDriver
from shim.logs.drivers import FORMATS
from shim.logs.format import Format


@dataclass(frozen=True)
class Output:
    """A line with its newline, or a piece of a line."""

    content: bytes
    stream: str
    time: str
    piece: int = 0
    """Number of the piece of a long line; 0 for a whole line."""


def at(number: int) -> str:
    """Format a time as Docker does, without trailing zeros."""
    fraction = f"{number:09}".rstrip("0")
    return f"2026-11-21T02:32:06{'.' if fraction else ''}{fraction}Z"


def cri(output: Output) -> bytes:
    """Return the CRI line of a record, computed independently of the code under test."""
    tag = b"F" if output.content.endswith(b"\n") else b"P"
    content = output.content.removesuffix(b"\n")
    return b" ".join([output.time.encode(), output.stream.encode(), tag, content]) + b"\n"


def json_line(output: Output) -> bytes:
    """Return a line of a `json-file` log."""
    fields = {"log": output.content.decode(errors="replace"), "stream": output.stream, "time": output.time}
    return json.dumps(fields, separators=(",", ":")).replace("<", "\\u003c").encode() + b"\n"


def local_record(output: Output) -> bytes:
    """Return a record of a `local` log, encoded field by field."""
    content = output.content.removesuffix(b"\n")
    message = b"\x0a" + counted(output.stream.encode()) + b"\x10" + varint(ns_from_rfc3339(output.time))
    message += b"\x1a" + counted(content) if content else b""
    whole = output.content.endswith(b"\n")
    if output.piece or not whole:
        last = b"\x08\x01" if whole else b""
        message += b"\x20\x01\x2a" + counted(last + b"\x12" + counted(b"ab" * 32) + b"\x18" + varint(output.piece or 1))
    return framed(message)


def framed(message: bytes) -> bytes:
    """Return a message between its two sizes."""
    size = len(message).to_bytes(4, "big")
    return size + message + size


def counted(data: bytes) -> bytes:
    return varint(len(data)) + data


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


RECORDS = {"json-file": json_line, "local": local_record}


@dataclass
class DockerLog:
    """Docker's log files of a container."""

    directory: Path
    driver: DockerLogDriver = "json-file"
    max_size: int = 1 << 20
    max_file: int = 2
    written: list[Output] = field(default_factory=list)
    number: int = 1000

    @property
    def path(self) -> Path:
        return Path(self.format.path(str(self.directory)))

    @property
    def format(self) -> Format:
        return FORMATS[self.driver]

    def start(self) -> None:
        """Create the directory and the file, as a start of the container does."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    def record(self, output: Output) -> bytes:
        """Return the record as it is in the file."""
        return RECORDS[self.driver](output)

    def write(self, text: str | bytes, *, stream: str = "stdout", time: str = "", piece: int = 0) -> Output:
        """Write a record; by default its time is later than the last record's."""
        self.number += 1
        content = text.encode() if isinstance(text, str) else text
        output = Output(content, stream, time or at(self.number), piece)
        if self.path.stat().st_size >= self.max_size:
            self.rotate()
        self.append(self.record(output))
        self.written.append(output)
        return output

    def append(self, data: bytes) -> None:
        """Write any bytes."""
        with self.path.open("ab") as file:
            file.write(data)

    def lines(self, first: int, last: int) -> None:
        """Write numbered lines."""
        for number in range(first, last):
            self.write(f"{number}\n")

    def rotate(self) -> None:
        """Rotate the files as Docker does."""
        for number in range(self.max_file - 1, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.rename(older)
        self.path.touch()

    def as_cri(self, first: int = 0) -> bytes:
        """Return all written records from number `first` on, as a CRI log."""
        return b"".join(map(cri, self.written[first:]))
