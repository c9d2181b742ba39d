"""Finds the volume of a host path without a system call on that path."""

import os
import select
import threading
from pathlib import Path

from shim.base.proc import mounts

MOUNTINFO = Path("/proc/self/mountinfo")
ROOT = "/"


class Volumes:
    """The node's mount points, read again after each change. Thread-safe."""

    def __init__(self, mountinfo: Path = MOUNTINFO) -> None:
        self._path = mountinfo
        self._file: int | None = None
        self._points: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def of_path(self, path: str) -> str:
        """Return the mount point above an absolute path, without following links; ROOT if unknown."""
        points = self._current()
        at = os.path.normpath(path)
        while at not in points and at not in ("", ROOT, "//"):
            at = os.path.dirname(at)  # noqa: PTH120 - of words, a hundred times a second
        return at if at in points else ROOT

    def close(self) -> None:
        """Close the file that reports changes."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _current(self) -> frozenset[str]:
        with self._lock:
            try:
                if self._has_changed():
                    self._points = self._read()
            except OSError:
                return frozenset()
            return self._points

    def _has_changed(self) -> bool:
        if self._file is None:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            return True
        poll = select.poll()
        poll.register(self._file, select.POLLPRI)
        return any(event & (select.POLLERR | select.POLLPRI) for _, event in poll.poll(0))

    def _read(self) -> frozenset[str]:
        assert self._file is not None  # noqa: S101 - it was opened above
        os.lseek(self._file, 0, os.SEEK_SET)
        content = bytearray()
        while piece := os.read(self._file, 1 << 16):
            content += piece
        # proc is not a volume: a path in it can only hang on a single process.
        return frozenset(mount.point for mount in mounts(bytes(content)) if mount.kind != b"proc")
