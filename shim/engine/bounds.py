"""Bounds on the size of Docker's answers, by their kind.

An answer contains data of others: labels and environment come from images and from pods. An answer that is too large
is an error of that one call; nothing of it is decoded. A list covers all objects of the node, so one of them must not
make it fail: of a large list, oversized values of a row are left out (`RowTrimmer`).
"""

import re

ANSWER = 1 << 20
"""Bytes of an answer that has no bound of its own: a create, a wait, a version."""
INSPECT = 8 << 20
"""Bytes of one inspect. Of a container: 2 MiB of environment and arguments, which is what the kernel takes, 1 MiB of a
seccomp profile, 512 KiB of labels and annotations, and as much for their escapes."""
IMAGE = 2 << 20
"""Bytes of one inspect of an image. Its configuration is kept for as long as it is on the node; most have some KiB."""
INFO = 4 << 20
"""Bytes of the daemon's info, which names runtimes with their features, and devices."""
ERROR = 64 << 10
"""Bytes read of an error answer; the rest is left out of the message."""
MESSAGE = 1 << 20
"""Bytes of one line of a stream: an event has the labels of its container."""
ITEMS = 1 << 18
"""Commas and closing brackets of one answer, about as many as it has values. One of three bytes takes 100 in memory."""

LIST = 64 << 20
"""Bytes of a list, after what is oversized in its rows has been left out: 1,000 containers of 64 KiB."""
LIST_AT_ONCE = 8 << 20
"""Bytes up to which a list is decoded as it is; most have some hundred KiB."""
ROW_VALUE = 256 << 10
"""Bytes of one value in a row: more than the annotations of a pod have. A larger one is read as empty."""
ROW_VALUE_CROWDED = 4 << 10
"""The same, once the list has LIST / 2 bytes."""
ROW_STRINGS = 4096
"""Strings in one value of a row, such as labels; one with more is read as empty."""

_PIECE = 64 << 10


class TooLarge(Exception):
    """An answer is larger than the bound of its kind. The text is the cause."""


class Whole:
    """A body that is kept as it is, up to a number of bytes."""

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        self._kept = bytearray()
        self._most = most

    def take(self, piece: bytes) -> None:
        """Append the next piece. Raise TooLarge beyond the bound."""
        if len(self._kept) + len(piece) > self._most:
            raise TooLarge(f"docker's answer has more than {self._most} bytes")
        self._kept += piece

    def content(self) -> bytes:
        """Return the body. Raise TooLarge for one with too many values."""
        if items(self._kept) > ITEMS:
            raise TooLarge(f"docker's answer has more than {ITEMS} values")
        return bytes(self._kept)


class Rows:
    """A body that is a JSON array of objects: one that is large is kept without what is oversized in its rows."""

    __slots__ = ("_plain", "_trimmer")

    def __init__(self) -> None:
        self._plain = bytearray()
        self._trimmer: RowTrimmer | None = None

    def take(self, piece: bytes) -> None:
        """Append the next piece. Raise TooLarge when the trimmed rest is too large."""
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
    """Return how many values JSON has at most, without decoding it."""
    return content.count(b",") + content.count(b"]") + content.count(b"}")


_STRUCTURE = re.compile(rb'["\[\]{}]')
_IN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_STRINGS = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_ROW = 2
"""Depth of the members of a row: the array is 1, the object in it 2."""


class RowTrimmer:
    """Bytes of a JSON array of objects in, the same without oversized values of their members out.

    A value in a row that is an object, array or string and has too many bytes or strings becomes an empty one. What is
    not JSON comes out as something that is not JSON either.
    """

    __slots__ = ("_depth", "_dropping", "_in_string", "_kept", "_rest", "_start", "_strings")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._rest = b""
        """A backslash at the end of what was fed: its other half is to come."""
        self._depth = 0
        self._in_string = False
        self._start = -1
        """Where in `_kept` the current value of a row begins, behind its opening sign; -1 between values."""
        self._strings = 0
        self._dropping = False

    def feed(self, data: bytes) -> None:
        """Append the next bytes. Raise TooLarge when more than LIST bytes are left."""
        for at in range(0, len(data), _PIECE):
            self._feed(self._rest + data[at : at + _PIECE])
            if len(self._kept) > LIST:
                raise TooLarge(f"docker's list has more than {LIST} bytes, without what is oversized in its rows")

    def trimmed(self) -> bytes:
        """Return what is left."""
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
        """Return where the next bracket is, or a string that is not complete: there may be very many strings."""
        found = _STRINGS.match(data, at)
        end = found.end() if found else at
        self._strings += data.count(b'"', at, end) // 2
        return end

    def _string(self, data: bytes, at: int) -> int:
        """Return where the string ends, or the length of the data."""
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
