"""HTTP/1.1 as dockerd speaks it on its unix socket: makes request bytes and parses response bytes, without a socket.

The streaming server uses h11; this client does not, since most calls are small and the processor time of a pod counts.
`make bench-http` measures both parsers on the same bytes, and the whole call (Python 3.11, h11 0.16, microseconds of
the calling thread):

    call                              own    h11   whole call   h11 would add
    inspect of a container             12     69     64 to 113      55 to 90 %
    start (204, no body)                7     48      62 to 84      52 to 66 %
    exec: create, start, inspect       22    170    589 to 661            25 %
    event                               3      8            50            11 %
    list of 100 containers             26     90    662 to 949       8 to 10 %
    MiB of an archive                 248    477           537            43 %

The peer is always Go's net/http on a local socket: it sends no obsolete line folding and no relevant trailers. Bounds
(`MAX_HEAD`, `MAX_CHUNK_LINE`), unit tests and a fuzzer cover a broken or hostile peer. After `101 UPGRADED`, bytes that
arrived with the head stay in the caller's buffer, so that no early output of an exec is lost.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_HEAD = 64 * 1024
"""Bytes of a response head, and of the trailer of a chunked body."""
MAX_CHUNK_LINE = 1024
"""Bytes of a chunk size line, and of a line of the trailer."""


class MalformedResponse(Exception):
    """The peer does not speak HTTP/1.1, or closed the connection in the middle of a response."""


@dataclass(frozen=True, slots=True)
class Head:
    """The status and the headers of a response."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; the last value of a repeated header."""

    @property
    def keep_alive(self) -> bool:
        """Whether the peer keeps the connection open for another request."""
        return self.headers.get("connection", "").lower() != "close"


def request_bytes(method: str, target: str, *, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the bytes of a request; `target` is already quoted. A POST without body has length 0, as Go expects."""
    lines = [f"{method} {target} HTTP/1.1", "Host: docker"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1:
        raise ValueError("a request header or target holds a line break")
    return text.encode() + b"\r\n\r\n" + body


def take_head(buffer: bytearray) -> Head | None:
    """Remove the next final response head from `buffer` and return it; None while it is incomplete.

    Skips interim answers (100, 102, 103), but returns 101, which ends HTTP.
    """
    while 0 <= (end := buffer.find(b"\r\n\r\n")) <= MAX_HEAD:
        head = _head_from_bytes(bytes(buffer[:end]))
        del buffer[: end + 4]
        if head.status >= 200 or head.status == 101:
            return head
    if end >= 0 or len(buffer) > MAX_HEAD:
        raise MalformedResponse(f"the response head exceeds {MAX_HEAD} bytes")
    return None


def _head_from_bytes(raw: bytes) -> Head:
    status_line, *lines = raw.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or len(status) != 3 or not _DECIMAL.fullmatch(status):
        raise MalformedResponse(f"not an HTTP/1.1 status line: {status_line[:80]!r}")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip("\t ")
    return Head(int(status), headers)


class Body:
    """A response body, taken piece by piece from the buffer that the connection fills.

    `done` is set at the end of the response: the rest of the buffer belongs to the next response.
    """

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def take(self, buffer: bytearray) -> bytes:
        """Remove the body bytes from `buffer` and return them; empty if more must arrive first."""
        raise NotImplementedError

    def end(self) -> None:
        """Handle the end of the connection. Raise MalformedResponse if the body is incomplete."""
        if not self.done:
            raise MalformedResponse("the connection ended in the middle of the response")


class SizedBody(Body):
    """A body framed by Content-Length."""

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size
        self.done = size == 0

    def take(self, buffer: bytearray) -> bytes:
        """Implement `Body.take`."""
        piece = bytes(buffer[: self._left])
        del buffer[: len(piece)]
        self._left -= len(piece)
        self.done = self._left == 0
        return piece


class UntilClosedBody(Body):
    """A body framed by the end of the connection."""

    __slots__ = ()

    def take(self, buffer: bytearray) -> bytes:
        """Implement `Body.take`."""
        piece = bytes(buffer)
        buffer.clear()
        return piece

    def end(self) -> None:
        """Implement `Body.end`: the close ends the body."""
        self.done = True


class ChunkedBody(Body):
    """A body framed by chunks (RFC 9112, section 7.1)."""

    __slots__ = ("_in_trailer", "_left", "_trailer")

    def __init__(self) -> None:
        super().__init__()
        self._left = 0
        """Remaining bytes of the current chunk with its CRLF; 0 between chunks."""
        self._in_trailer = False
        self._trailer = 0
        """Bytes of the trailer so far."""

    def take(self, buffer: bytearray) -> bytes:
        """Implement `Body.take`."""
        pieces = []
        while not self.done and (piece := self._step(buffer)) is not None:
            pieces.append(piece)
        return b"".join(pieces)

    def _step(self, buffer: bytearray) -> bytes | None:
        """Consume one element; return None if the buffer does not hold all of it."""
        if self._left:
            return self._take_data(buffer) if buffer else None
        line = _take_line(buffer)
        if line is None:
            return None
        if self._in_trailer:
            self._trailer += len(line)
            if self._trailer > MAX_HEAD:
                raise MalformedResponse(f"the response trailer exceeds {MAX_HEAD} bytes")
            self.done = not line
        elif size := _chunk_size(line):
            self._left = size + 2
        else:
            self._in_trailer = True
        return b""

    def _take_data(self, buffer: bytearray) -> bytes:
        taken = bytes(buffer[: self._left])
        del buffer[: len(taken)]
        data = taken[: max(0, self._left - 2)]
        self._left -= len(taken)
        return data


def _take_line(buffer: bytearray) -> bytes | None:
    end = buffer.find(b"\r\n")
    if end < 0:
        if len(buffer) > MAX_CHUNK_LINE:
            raise MalformedResponse("a chunk size line without end")
        return None
    line = bytes(buffer[:end])
    del buffer[: end + 2]
    return line


_DECIMAL = re.compile(r"[0-9]{1,18}")
_HEX = re.compile(rb"[0-9a-fA-F]{1,15}")


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not _HEX.fullmatch(digits):
        raise MalformedResponse(f"not a chunk size: {line[:40]!r}")
    return int(digits, 16)


def body_of(head: Head, *, method: str) -> Body:
    """Return the body that follows `head` (RFC 9112, section 6.3)."""
    if method == "HEAD" or head.status in (204, 304):
        return SizedBody(0)
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return ChunkedBody()
    length = head.headers.get("content-length")
    if length is None:
        return UntilClosedBody()
    if not _DECIMAL.fullmatch(length):
        raise MalformedResponse(f"not a content length: {length[:40]!r}")
    return SizedBody(int(length))
