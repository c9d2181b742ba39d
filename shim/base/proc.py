r"""Text of the kernel: the tables below /proc, and files of control groups.

Programs name mounts, processes, interfaces and control groups, with any byte. The kernel keeps `\n` out of most of
these names, and blanks out of those in mountinfo. So its text is bytes, whose lines end at `\n` alone: `str` ends lines
and words at a dozen other characters as well, a file that is opened as text turns `\r` into `\n`, and not every name is
UTF-8. A program that chose such a name could add a line to a table, or make its reader fail.

It imports little: the OCI runtime, which starts anew for each container, needs it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # as above
if TYPE_CHECKING:
    from collections.abc import Iterator

_OPTIONAL_FIELDS = 6
"""Place of the first optional field in a line of mountinfo, proc(5)."""


def lines(content: bytes) -> list[bytes]:
    """Return the lines of a table."""
    return content.removesuffix(b"\n").split(b"\n") if content else []


def value_of(content: bytes, key: bytes) -> bytes:
    """Return the value in the line `key:<blanks>value` of a file such as /proc/<pid>/status; empty where it is not."""
    return (b"\n" + content).partition(b"\n" + key + b":")[2].partition(b"\n")[0].strip()


def to_text(word: bytes) -> str:
    """Return a word as Python names files: what is not UTF-8 is kept."""
    return os.fsdecode(word)


def unescape(word: bytes) -> bytes:
    """Undo what the kernel writes in tables of mounts for blanks and the like: their number in three octal digits."""
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
    """A line of mountinfo. What few readers need is decoded when they ask for it."""

    __slots__ = ("fields", "separator")

    def __init__(self, fields: list[bytes], separator: int) -> None:
        self.fields = fields
        self.separator = separator
        """Place of the field `-`."""

    @property
    def id(self) -> bytes:
        """Return the number of the mount."""
        return self.fields[0]

    @property
    def root(self) -> str:
        """Return which directory of the file system is mounted."""
        return to_text(unescape(self.fields[3]))

    @property
    def point(self) -> str:
        """Return where it is mounted, as seen from the root of the process."""
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
        """Return the options of the file system; an option without a value has an empty one."""
        pairs = (option.partition(b"=") for option in self.fields[self.separator + 3].split(b","))
        return {to_text(unescape(name)): to_text(unescape(value)) for name, _, value in pairs}


def mounts(mountinfo: bytes) -> Iterator[Mount]:
    """Yield the mounts in a /proc/<pid>/mountinfo. A line that is not whole is left out."""
    for line in lines(mountinfo):
        fields = line.split(b" ")
        separator = fields.index(b"-", _OPTIONAL_FIELDS) if b"-" in fields[_OPTIONAL_FIELDS:] else len(fields)
        if separator + 3 < len(fields):
            yield Mount(fields, separator)
