"""The name/value header block and its compression (2.6.10).

Each direction of a session compresses all header blocks in a single zlib stream with the protocol's dictionary. So
every block must be inflated, even the block of a refused stream; otherwise later blocks could not be inflated.
"""

import struct
import zlib

from shim.streaming.spdy.errors import ResetStatus, SessionError, StreamError

Headers = tuple[tuple[str, str], ...]
"""Pairs of lower case name and value; a name with several values occurs several times in a row."""

_LENGTH = struct.Struct("!I")
_SEPARATOR = b"\0"

# The dictionary has 1423 bytes and the zlib id 0xe3c6a7c2: words of HTTP, each after its length in four bytes as in a
# header block, then status codes, dates and media types as text.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _counted(field: bytes) -> bytes:
    return _LENGTH.pack(len(field)) + field


DICTIONARY = b"".join(_counted(word.replace("_", " ").encode()) for word in _WORDS.split()) + _TEXT.encode()


def headers_from_block(block: bytes, *, stream_id: int, max_values: int) -> Headers:
    """Return the pairs of an inflated block. Raise StreamError PROTOCOL_ERROR if it violates 2.6.10.

    A block with more than `max_values` values is refused before their strings and tuples are created.
    """
    fields = _Fields(block, stream_id)
    seen: set[bytes] = set()
    pairs: list[tuple[str, str]] = []
    for _ in range(fields.count()):
        name, value = fields.take(), fields.take()
        if not name or not name.isascii() or _SEPARATOR in name or name != name.lower() or name in seen:
            raise fields.error(f"header name {name[:64]!r} is empty, duplicate or not lower case ASCII")
        seen.add(name)
        count = value.count(_SEPARATOR) + 1
        if len(pairs) + count > max_values:
            raise fields.error(f"more than {max_values} header values")
        values = value.split(_SEPARATOR)
        if len(values) > 1 and not all(values):
            raise fields.error(f"header {name[:64]!r} has an empty value among several")
        pairs.extend((name.decode("ascii"), each.decode("latin-1")) for each in values)
    fields.expect_end()
    return tuple(pairs)


class _Fields:
    """A cursor over the counted fields of a block."""

    def __init__(self, block: bytes, stream_id: int) -> None:
        self._block = block
        self._at = 0
        self._stream_id = stream_id

    def error(self, reason: str) -> StreamError:
        return StreamError(self._stream_id, ResetStatus.PROTOCOL_ERROR, reason)

    def _number(self) -> int:
        if self._at + 4 > len(self._block):
            raise self.error("header block is too short")
        (number,) = _LENGTH.unpack_from(self._block, self._at)
        self._at += 4
        return int(number)

    def count(self) -> int:
        return self._number()

    def take(self) -> bytes:
        length = self._number()
        if length > len(self._block) - self._at:
            raise self.error("header block is too short")
        field = self._block[self._at : self._at + length]
        self._at += length
        return field

    def expect_end(self) -> None:
        if self._at != len(self._block):
            raise self.error("header block is longer than its headers")


class Deflater:
    """Compresses the blocks of one direction."""

    def __init__(self) -> None:
        # A window of 2 KiB holds the dictionary. The defaults of zlib would take 256 KiB per connection, without
        # benefit for a few short headers.
        self._zlib = zlib.compressobj(level=6, wbits=11, memLevel=1, zdict=DICTIONARY)

    def deflate(self, block: bytes) -> bytes:
        """Return the compressed block, flushed so that the peer can inflate it."""
        return self._zlib.compress(block) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class Inflater:
    """Decompresses the blocks of one direction, with limits per block and in total."""

    def __init__(self, *, max_block: int, free: int, ratio: int) -> None:
        """`max_block` limits the bytes of an inflated block, `free` and `ratio` limit the total; see `Limits`."""
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)
        self._max_block = max_block
        self._ratio = ratio
        self._left = free

    def inflate(self, data: bytes) -> bytes:
        """Return the block. Raise SessionError if it is invalid or exceeds a limit, as no later block is readable."""
        try:
            block = self._zlib.decompress(data, self._max_block + 1)
        except zlib.error as exc:
            raise SessionError(f"header block cannot be inflated: {exc}") from exc
        if len(block) > self._max_block:
            raise SessionError(f"header block inflates to more than {self._max_block} bytes")
        if self._zlib.eof:
            raise SessionError("the zlib stream of the headers was ended")
        self._left += len(data) * self._ratio - len(block)
        if self._left < 0:
            raise SessionError(f"header blocks inflate to more than {self._ratio} times their size")
        return block
