"""Files that come in pieces, as long lists of the kernel do: a pipe holds less than there is to send."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def in_pieces(path: Path, content: bytes) -> Iterator[None]:
    """Let the reader of this path inside the block get the content, once, and not with one read."""
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
    except BrokenPipeError:  # the reader did not want the rest
        return
