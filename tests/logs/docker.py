"""A json-file log as Docker writes it: lines, pieces of lines, rotation by rename."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from shim.logs.decode import Record


def line(record: Record) -> bytes:
    """One line of Docker's file."""
    text = json.dumps({"log": record.log, "stream": record.stream, "time": record.time}, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode() + b"\n"


def at(number: int) -> str:
    """A time as Docker writes it: without trailing zeros."""
    fraction = f"{number:09}".rstrip("0")
    return f"2026-11-21T02:32:06{'.' if fraction else ''}{fraction}Z"


def cri(record: Record) -> bytes:
    """The line of a CRI log that stands for a record, said in another way than the code under test does."""
    whole = record.log.endswith("\n")
    return (
        b" ".join(
            [
                record.time.encode(),
                record.stream.encode(),
                b"F" if whole else b"P",
                record.log.removesuffix("\n").encode(),
            ]
        )
        + b"\n"
    )


@dataclass
class DockerLog:
    """The files of one container."""

    directory: Path
    max_size: int = 1 << 20
    max_file: int = 2
    written: list[Record] = field(default_factory=list)
    number: int = 1000

    @property
    def path(self) -> Path:
        return self.directory / "c-json.log"

    def start(self) -> None:
        """Make the directory and the file, as a start does."""
        self.directory.mkdir(exist_ok=True)
        self.path.touch()

    def write(self, text: str, *, stream: str = "stdout", time: str = "") -> Record:
        """Write one record; without a time, a later one than before."""
        self.number += 1
        record = Record(text, stream, time or at(self.number))  # type: ignore[arg-type] # a literal for the decoder
        if self.path.stat().st_size >= self.max_size:
            self.rotate()
        with self.path.open("ab") as file:
            file.write(line(record))
        self.written.append(record)
        return record

    def lines(self, first: int, last: int) -> None:
        """Write numbered lines."""
        for number in range(first, last):
            self.write(f"{number}\n")

    def rotate(self) -> None:
        """Rename as Docker does."""
        for number in range(self.max_file - 1, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.rename(older)
        self.path.touch()

    def as_cri(self) -> bytes:
        """All that was ever written, as a CRI log."""
        return b"".join(map(cri, self.written))
