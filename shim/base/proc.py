r"""Parsers for files of the kernel: the tables in /proc and the files of control groups.

They parse bytes, whose lines end at `\n` alone. Programs choose the names of mounts, processes, interfaces and control
groups, and may use any byte that the kernel does not escape. As text, such a name could add a line to a table or make
the parser fail: `str` splits lines and words at a dozen other characters, text mode turns `\r` into `\n`, and a name
may not be UTF-8.

This module imports little, since the OCI runtime, which is started for each container, imports it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as above
if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONAL_FIELDS = 6
"""Index of the first optional field in a line of mountinfo, proc(5)."""


def lines(content: bytes) -> list[bytes]:
    """Return the lines of a table."""
    return content.removesuffix(b"\n").split(b"\n") if content else []


def value_of(content: bytes, key: bytes) -> bytes:
    """Return the value of the line `key:<blanks>value` of a file such as /proc/<pid>/status; empty if it is missing."""
    return (b"\n" + content).partition(b"\n" + key + b":")[2].partition(b"\n")[0].strip()


def to_text(word: bytes) -> str:
    """Decode a word as Python decodes file names: bytes that are not UTF-8 become surrogates."""
    return os.fsdecode(word)


def unescape(word: bytes) -> bytes:
    """Replace the escapes of mount tables, a backslash and three octal digits, by their bytes."""
    if b"\\" not in word:
        return word
    first, *others = word.split(b"\\")
    return first + b"".join(map(_behind_backslash, others))


def _behind_backslash(text: bytes) -> bytes:
    number = text[:3]
    if len(number) == 3 and number[0] in b"0123" and not number.strip(b"01234567"):
        return bytes((int(number, 8),)) + text[3:]
    return b"\\" + text


class Mount:
    """A line of mountinfo. Fields are decoded when a property is read."""

    __slots__ = ("fields", "separator")

    def __init__(self, fields: list[bytes], separator: int) -> None:
        self.fields = fields
        self.separator = separator
        """Index of the field `-`."""

    @property
    def id(self) -> bytes:
        """Return the mount id."""
        return self.fields[0]

    @property
    def root(self) -> str:
        """Return the directory of the file system that is mounted."""
        return to_text(unescape(self.fields[3]))

    @property
    def point(self) -> str:
        """Return the mount point, relative to the root of the process."""
        return to_text(unescape(self.fields[4]))

    @property
    def propagation(self) -> set[bytes]:
        """Return the names of the optional fields, such as `shared` and `master`."""
        return {field.partition(b":")[0] for field in self.fields[_OPTIONAL_FIELDS : self.separator]}

    @property
    def kind(self) -> bytes:
        """Return the type of the file system."""
        return self.fields[self.separator + 1]

    @property
    def options(self) -> dict[str, str]:
        """Return the options of the file system; the value is empty for an option without a value."""
        pairs = (option.partition(b"=") for option in self.fields[self.separator + 3].split(b","))
        return {to_text(unescape(name)): to_text(unescape(value)) for name, _, value in pairs}


def mounts(mountinfo: bytes) -> Iterator[Mount]:
    """Yield the mounts in a /proc/<pid>/mountinfo; skip incomplete lines."""
    for line in lines(mountinfo):
        fields = line.split(b" ")
        separator = fields.index(b"-", _OPTIONAL_FIELDS) if b"-" in fields[_OPTIONAL_FIELDS:] else len(fields)
        if separator + 3 < len(fields):
            yield Mount(fields, separator)
