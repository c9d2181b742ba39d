"""Files that reads return in pieces, as the kernel's long lists: a pipe holds less than the content."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_pieces(path: Path, content: bytes) -> Iterator[None]:
    """Let a reader of this path inside the block get the content once, in several reads."""
    os.mkfifo(path)
    writer = threading.Thread(target=_write, args=(path, content))
    writer.start()
    try:
        yield
    finally:
        writer.join()


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except BrokenPipeError:  # the reader has closed the pipe early
        return
