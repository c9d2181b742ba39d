"""Reads whole lines of a file backwards from its end, because files may be large and only the last lines are needed."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator

BLOCK = 1 << 18
"""Maximum bytes of a read. A line of Docker's files or of a CRI log is shorter."""


KEPT = 1 << 22
"""Minimum bytes kept of the end of a compressed file: 256 pieces of a line, each of 16 KiB."""


def end_of_lines(fd: int) -> int:
    """Return the offset after the last newline; 0 if there is no newline."""
    return end_of_whole(fd, lambda data: data.rfind(b"\n") + 1)


def end_of_whole(fd: int, whole: Callable[[bytes], int]) -> int:
    """Return the offset after the last whole record; 0 if there is no record.

    `whole` returns this offset in bytes that may begin inside a record; 0 if no record ends in them.
    """
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - BLOCK)
        found = whole(os.pread(fd, end - start, start))
        if found:
            return start + found
        end = start
    return 0


def lines_backwards(fd: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a file in groups, each with its offset, the last group first. Skip a torn last line.

    The lines of a group are in order, each with its newline.
    """
    return groups_backwards(fd, end=end_of_lines(fd), begin=lambda data: data.find(b"\n") + 1 or len(data))


def groups_backwards(fd: int, *, end: int, begin: Callable[[bytes], int]) -> Iterator[tuple[int, bytes]]:
    """Yield the whole records before `end` in groups, each with its offset, the last group first.

    A record must end at `end`. `begin` returns the offset of the first record in bytes that may begin inside a record,
    or their length if no record begins in them. Garbage longer than BLOCK is skipped; the group before it may end in a
    torn record.
    """
    carry = b""
    while end > 0:
        start = max(0, end - BLOCK)
        data = os.pread(fd, end - start, start) + carry
        # A record that begins before this block is completed with the previous block.
        cut = 0 if start == 0 else begin(data)
        # More bytes than a record are garbage, such as zeros after a power loss. They must not fill the memory.
        carry = data[:cut] if cut <= BLOCK else b""
        end = start
        if cut < len(data):
            yield start + cut, data[cut:]


def last_lines_compressed(fd: int) -> bytes:
    """Return the last whole lines of a gzip file, at most 2 * KEPT bytes, each with its newline.

    A gzip file can only be read forwards. If it is damaged, only the part before the damage is read.
    """
    kept, cut = bytearray(), False
    with os.fdopen(fd, "rb", closefd=False) as raw, gzip.GzipFile(fileobj=raw) as file:
        try:
            while data := file.read1(BLOCK):
                kept += data
                if len(kept) > 2 * KEPT:
                    del kept[:-KEPT]
                    cut = True
        except (EOFError, zlib.error, gzip.BadGzipFile):
            pass  # damaged from here on
    begin = kept.find(b"\n") + 1 if cut else 0
    return bytes(kept[begin : kept.rfind(b"\n") + 1])
