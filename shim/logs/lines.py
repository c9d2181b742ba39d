"""Whole lines of a file from its end backwards, in pieces: what is sought is near the end, and files may be large."""

import gzip
import os
import zlib
from collections.abc import Iterator

BLOCK = 1 << 18
"""Bytes of one read. More than any line has, of Docker's file and of a CRI log."""


KEPT = 1 << 22
"""Bytes kept at least of the end of a compressed file: 256 pieces of a line that Docker cuts at 16 KiB."""


def end_of_lines(fd: int) -> int:
    """Offset behind the last newline; 0 where there is none."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - BLOCK)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def lines_backwards(fd: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a file in groups, the last group first; a torn line at the end is left out.

    Of each group: the offset of its first line, and its lines in order, each with its newline; at least one.
    """
    end, carry = end_of_lines(fd), b""
    while end > 0:
        start = max(0, end - BLOCK)
        data = os.pread(fd, end - start, start) + carry
        cut = 0 if start == 0 else data.find(b"\n") + 1
        # The line that begins before this block is read with the block before.
        carry = data[:cut] if cut else data
        end = start
        if data[cut:] and (cut or start == 0):
            yield start + cut, data[cut:]


def last_lines_compressed(fd: int) -> bytes:
    """Give the last whole lines of a gzip file, at most 2 * KEPT bytes of them, each with its newline.

    It can only be read forwards, and is: of one that is damaged, what comes before the damage.
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
            pass  # nothing behind this can be read
    begin = kept.find(b"\n") + 1 if cut else 0
    return bytes(kept[begin : kept.rfind(b"\n") + 1])
