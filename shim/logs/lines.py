"""Whole lines of a file from its end backwards, in pieces: the position is near the end, and files may be large."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator

BLOCK = 1 << 18
"""Bytes of one read. More than any line has, of Docker's file and of a CRI log."""


KEPT = 1 << 22
"""Minimum of bytes kept of the end of a compressed file: 256 pieces of a line that Docker cuts at 16 KiB."""


def end_of_lines(fd: int) -> int:
    """Return the offset behind the last newline; 0 if there is none."""
    return end_of_whole(fd, lambda data: data.rfind(b"\n") + 1)


def end_of_whole(fd: int, whole: Callable[[bytes], int]) -> int:
    """Return the offset behind the last whole record, 0 if there is none.

    `whole` returns the same within bytes that begin anywhere.
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
    """Yield the whole lines of a file in groups, the last group first; a torn line at the end is left out.

    Of each group: the offset of its first line, and its lines in order, each with its newline; at least one.
    """
    return groups_backwards(fd, end=end_of_lines(fd), begin=lambda data: data.find(b"\n") + 1 or len(data))


def groups_backwards(fd: int, *, end: int, begin: Callable[[bytes], int]) -> Iterator[tuple[int, bytes]]:
    """Yield what is before `end`, where a record ends, in groups of whole records, the last group first.

    `begin` returns where the first record begins within bytes that begin anywhere, their length if none does. Bytes
    longer than BLOCK are no record and are left out: the group before them then ends in a torn one.
    """
    carry = b""
    while end > 0:
        start = max(0, end - BLOCK)
        data = os.pread(fd, end - start, start) + carry
        # A record that begins before this block is read with the block before.
        cut = 0 if start == 0 else begin(data)
        # More than the longest record is garbage, such as the zeros of a power loss. Kept, it could fill the memory.
        carry = data[:cut] if cut <= BLOCK else b""
        end = start
        if cut < len(data):
            yield start + cut, data[cut:]


def last_lines_compressed(fd: int) -> bytes:
    """Return the last whole lines of a gzip file, at most 2 * KEPT bytes of them, each with its newline.

    It can only be read forwards; of a damaged file the part before the damage is read.
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
            pass  # the rest cannot be read
    begin = kept.find(b"\n") + 1 if cut else 0
    return bytes(kept[begin : kept.rfind(b"\n") + 1])
