"""The format of Docker's `local` log, which keeps a container's bytes unchanged. Pure, except for reading backwards.

A record consists of a size in four bytes, big-endian, a `LogEntry` (proto/shim/api/docker/log_entry.proto), and the
same size again (source: package daemon/logger/local of the Engine). The content has no newline, because Docker ends the
record there. But every message begins with a newline (_MESSAGE). So no content looks like the beginning of a record,
and the next record after a torn record can be found.
"""

import posixpath
import struct
import time
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from shim.api.docker.log_entry_pb2 import LogEntry
from shim.base.times import SECOND, ns_from_rfc3339
from shim.logs.crilog import LineHead
from shim.logs.format import CHUNK, Format, Lines, Marks
from shim.logs.lines import end_of_whole, groups_backwards

_SIZE = struct.Struct(">I")
_FRAME = 2 * _SIZE.size
_MAX_MESSAGE = 1 << 17
"""Maximum bytes of a message, which has 16 KiB of content, an id, and perhaps fields of later Engines."""
_MESSAGE = b"\n\x06std"
"""The beginning of every message: field 1, six bytes, stdout or stderr."""
_HEAD = _SIZE.size + len(_MESSAGE)
_STREAMS = {"stdout": b"stdout", "stderr": b"stderr"}


def path(directory: str) -> str:
    """Implement `shim.logs.format.Format.path`."""
    return posixpath.join(directory, "local-logs", "container.log")


def whole(data: bytes) -> int:
    """Implement `shim.logs.format.Format.whole`; `data` may begin anywhere."""
    begin = _last_begin(data)
    if begin < 0:
        # The last bytes may be the beginning of a record.
        return len(data) - _HEAD if len(data) >= CHUNK else 0
    end = begin + _size_at(data, begin) + _FRAME
    if end > len(data):
        return begin
    torn = data[end - _SIZE.size : end] != data[begin : begin + _SIZE.size]
    return max(begin, len(data) - _HEAD) if torn else end


def lines(records: bytes) -> Lines:
    """Implement `shim.logs.format.Format.lines`."""
    read = _join(_read(records, wary=False))
    return read if read.text.count(b"\n") == read.count else _join(_read(records, wary=True))


def each(records: bytes) -> Iterator[tuple[int, bytes]]:
    """Implement `shim.logs.format.Format.each`."""
    return ((end, line) for end, line in _read(records, wary=True) if line)


def backwards(fd: int) -> Iterator[tuple[int, bytes]]:
    """Implement `shim.logs.format.Format.backwards`."""
    return groups_backwards(fd, end=end_of_whole(fd, whole), begin=_next_begin)


def marks(head: LineHead) -> Marks:
    """Implement `shim.logs.format.Format.marks`."""
    message = LogEntry(source=head.stream).SerializeToString()
    return Marks(time=LogEntry(time_nano=ns_from_rfc3339(head.time)).SerializeToString(), stream=message)


LOCAL = Format(
    path=path,
    path_is_reported=False,
    made_at_start=True,
    whole=whole,
    lines=lines,
    each=each,
    backwards=backwards,
    marks=marks,
)


def _join(read: Iterator[tuple[int, bytes]]) -> Lines:
    found = [line for _, line in read]
    unreadable = found.count(b"")
    return Lines(b"".join(found), len(found) - unreadable, unreadable)


def _read(records: bytes, *, wary: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the end offset and the CRI line of each record, and an empty line for garbage between records.

    If the size of a torn record happens to end at a later record's end, the torn record can be decoded, and its content
    has newlines. `wary` rejects such records, which takes time.
    """
    at, second, prefix = 0, -1, b""
    while at < len(records):
        entry, end = _entry_at(records, at)
        if entry is None or (wary and b"\n" in entry.line):
            at = _behind_torn(records, at)
            yield at, b""
            continue
        at = end
        seconds, nanoseconds = divmod(entry.time_nano, SECOND)
        if seconds != second:
            second, prefix = seconds, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)).encode()
        fraction = (b".%09d" % nanoseconds).rstrip(b"0.")
        tag = b"P" if entry.partial and not entry.piece.last else b"F"
        yield at, b"%b%bZ %b %b %b\n" % (prefix, fraction, _STREAMS[entry.source], tag, entry.line)


def _entry_at(records: bytes, at: int) -> tuple[LogEntry | None, int]:
    """Return the message and the end offset of the record at `at`; the message is None if there is no record."""
    try:
        (size,) = _SIZE.unpack_from(records, at)
        end = at + size + _FRAME
        (again,) = _SIZE.unpack_from(records, end - _SIZE.size)
        entry = LogEntry.FromString(records[at + _SIZE.size : end - _SIZE.size]) if size == again else None
    except (struct.error, DecodeError):
        return None, at
    return (entry, end) if entry is not None and entry.source in _STREAMS else (None, at)


def _behind_torn(records: bytes, at: int) -> int:
    """Return the offset of the next record if no record is at `at`; the length of `records` if none is left."""
    if at >= _SIZE.size and records.startswith(_MESSAGE, at):
        # The previous record was torn before its second size, so the first size of this record was read instead.
        return at - _SIZE.size
    return _next_begin(records, at + 1)


def _next_begin(data: bytes, start: int = 0) -> int:
    """Return the offset of the next record from `start` on; the length of `data` if there is no record."""
    found = data.find(_MESSAGE, start + _SIZE.size)
    while found >= 0 and _size_at(data, found - _SIZE.size) > _MAX_MESSAGE:
        found = data.find(_MESSAGE, found + 1)
    return found - _SIZE.size if found >= 0 else len(data)


def _last_begin(data: bytes) -> int:
    """Return the offset of the last record; -1 if there is no record."""
    found = data.rfind(_MESSAGE)
    while found >= _SIZE.size and _size_at(data, found - _SIZE.size) > _MAX_MESSAGE:
        found = data.rfind(_MESSAGE, 0, found)
    return found - _SIZE.size if found >= _SIZE.size else -1


def _size_at(data: bytes, at: int) -> int:
    size: int = _SIZE.unpack_from(data, at)[0]
    return size
