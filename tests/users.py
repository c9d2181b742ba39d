"""Access to files as another user."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tests.mounts import need_root

_NOBODY = 65534
_libc = ctypes.CDLL(None)


@contextmanager
def unprivileged_files() -> Iterator[None]:
    """Give this thread only the access to files that every user has (setfsuid(2))."""
    need_root()
    before = _libc.setfsuid(_NOBODY)
    try:
        yield
    finally:
        _libc.setfsuid(before)
