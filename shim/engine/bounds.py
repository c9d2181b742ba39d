"""Bounds on the size of Docker's answers, by kind.

Answers contain data from images and pods, such as labels and environments. An answer beyond its bound is not decoded,
and its call fails. A list covers all objects of the node, and no single object may make it fail: in a large list,
oversized values of a row are left out (`RowTrimmer`).
"""

import re

ANSWER = 1 << 20
"""Bytes of an answer of any other kind, such as a create, a wait or a version."""
INSPECT = 8 << 20
"""Bytes of an inspect. A container may have 2 MiB of environment and arguments, the kernel's maximum, 1 MiB of seccomp
profile and 512 KiB of labels and annotations, and twice as much with JSON escapes."""
IMAGE = 2 << 20
"""Bytes of an image inspect. The configuration is kept in memory; most images have a few KiB."""
INFO = 4 << 20
"""Bytes of the daemon's info, which includes devices, and runtimes with their features."""
ERROR = 64 << 10
"""Bytes read from an error answer; the rest is left out of the message."""
MESSAGE = 1 << 20
"""Bytes of a line of a stream: an event includes the labels of its container."""
ITEMS = 1 << 18
"""Commas and closing brackets in an answer, about its number of values. A value of 3 bytes takes 100 in memory."""

LIST = 64 << 20
"""Bytes of a list without the oversized values of its rows: 1,000 containers of 64 KiB."""
LIST_AT_ONCE = 8 << 20
"""A list up to this size, in bytes, is decoded as it is; most lists have some hundred KiB."""
ROW_VALUE = 256 << 10
"""Bytes of a value in a row, more than the annotations of a pod. A larger value becomes empty."""
ROW_VALUE_CROWDED = 4 << 10
"""As ROW_VALUE, once the list has LIST / 2 bytes."""
ROW_STRINGS = 4096
"""Strings in a value of a row, such as labels. A value with more strings becomes empty."""

_PIECE = 64 << 10


class TooLarge(Exception):
    """An answer exceeds the bound of its kind. The text is the cause."""


class Whole:
    """Collects a body, up to a number of bytes."""

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        self._kept = bytearray()
        self._most = most

    def take(self, piece: bytes) -> None:
        """Append the next piece. Raise TooLarge beyond the bound."""
        if len(self._kept) + len(piece) > self._most:
            raise TooLarge(f"Docker's answer has more than {self._most} bytes")
        self._kept += piece

    def content(self) -> bytes:
        """Return the body. Raise TooLarge if it has too many values."""
        if items(self._kept) > ITEMS:
            raise TooLarge(f"Docker's answer has more than {ITEMS} values")
        return bytes(self._kept)


class Rows:
    """Collects a JSON array of objects, and drops the oversized values in the rows of a large array."""

    __slots__ = ("_plain", "_trimmer")

    def __init__(self) -> None:
        self._plain = bytearray()
        self._trimmer: RowTrimmer | None = None

    def take(self, piece: bytes) -> None:
        """Append the next piece. Raise TooLarge if the trimmed list is too large."""
        if self._trimmer is not None:
            self._trimmer.feed(piece)
            return
        self._plain += piece
        if len(self._plain) > LIST_AT_ONCE:
            self._trim()

    def content(self) -> bytes:
        """Return the body."""
        if self._trimmer is None and items(self._plain) > ITEMS:
            self._trim()
        return bytes(self._plain) if self._trimmer is None else self._trimmer.trimmed()

    def _trim(self) -> None:
        self._trimmer = RowTrimmer()
        self._trimmer.feed(bytes(self._plain))
        self._plain.clear()


def items(content: bytes | bytearray) -> int:
    """Return an upper bound on the number of values in JSON, without decoding it."""
    return content.count(b",") + content.count(b"]") + content.count(b"}")


_STRUCTURE = re.compile(rb'["\[\]{}]')
# The groups are not possessive: before Python 3.11.5 a possessive group that backtracks ends at a wrong place.
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*', re.DOTALL)
_STRINGS = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*")*', re.DOTALL)
_ROW = 2
"""Depth of the members of a row: the array has depth 1, its objects have depth 2."""


class RowTrimmer:
    """Copies a JSON array of objects and empties oversized values of their members.

    An object, array or string with too many bytes or strings becomes empty. Input that is not JSON gives output that is
    not JSON.
    """

    __slots__ = ("_depth", "_dropping", "_in_string", "_kept", "_rest", "_start", "_strings")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._rest = b""
        """A backslash at the end of the input so far, whose escaped character is still to come."""
        self._depth = 0
        self._in_string = False
        self._start = -1
        """Where the current value of a row begins in `_kept`, behind its opening sign; -1 between values."""
        self._strings = 0
        self._dropping = False

    def feed(self, data: bytes) -> None:
        """Append the next bytes. Raise TooLarge if more than LIST bytes remain."""
        for at in range(0, len(data), _PIECE):
            self._feed(self._rest + data[at : at + _PIECE])
            if len(self._kept) > LIST:
                raise TooLarge(f"Docker's list has more than {LIST} bytes, without oversized values of its rows")

    def trimmed(self) -> bytes:
        """Return the trimmed array."""
        return bytes(self._kept)

    def _feed(self, data: bytes) -> None:
        self._rest = b""
        at, copied = 0, 0
        while at < len(data):
            if self._depth > _ROW and not self._in_string:
                at = self._within_value(data, at)
            if self._in_string:
                at = self._string(data, at)
            elif (found := _STRUCTURE.search(data, at)) is None:
                at = len(data)
            else:
                copied = self._structure(data, found.start(), copied)
                at = found.end()
                continue
            if at < len(data):  # the quote that ends the string
                copied = self._end_string(data, at, copied)
                at += 1
        self._keep(data[copied : len(data) - len(self._rest)])

    def _within_value(self, data: bytes, at: int) -> int:
        """Return the offset of the next bracket or incomplete string: many strings are skipped at once."""
        found = _STRINGS.match(data, at)
        end = found.end() if found else at
        self._strings += data.count(b'"', at, end) // 2
        return end

    def _string(self, data: bytes, at: int) -> int:
        """Return the offset of the end of the string, or the length of the data."""
        found = _IN_STRING.match(data, at)
        end = found.end() if found else at
        if data[end:] == b"\\":
            self._rest = b"\\"
            return len(data)
        return end

    def _end_string(self, data: bytes, at: int, copied: int) -> int:
        self._in_string = False
        self._strings += 1
        return self._end_value(data, at, copied) if self._depth == _ROW else copied

    def _structure(self, data: bytes, at: int, copied: int) -> int:
        """Process a character that begins a string, or begins or ends an object or array."""
        sign = data[at : at + 1]
        if sign == b'"':
            self._in_string = True
        elif sign in b"[{":
            self._depth += 1
        else:
            self._depth -= 1
            return self._end_value(data, at, copied) if self._depth == _ROW else copied
        opened = self._depth == (_ROW if self._in_string else _ROW + 1)
        return self._begin_value(data, at + 1, copied) if opened and self._start < 0 else copied

    def _begin_value(self, data: bytes, at: int, copied: int) -> int:
        self._keep(data[copied:at])
        self._start, self._strings = len(self._kept), 0
        return at

    def _end_value(self, data: bytes, at: int, copied: int) -> int:
        """Process the character at `at`, which ends a value of a row."""
        self._keep(data[copied:at])
        self._start, self._dropping = -1, False
        return at

    def _keep(self, data: bytes) -> None:
        if self._dropping:
            return
        self._kept += data
        if self._start >= 0:
            most = ROW_VALUE if self._start < LIST // 2 else ROW_VALUE_CROWDED
            if len(self._kept) - self._start > most or self._strings > ROW_STRINGS:
                del self._kept[self._start :]
                self._dropping = True
