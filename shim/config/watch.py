"""Watches files with inotify, for a server that waits until invalid settings are corrected."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from inotify_simple import INotify, flags  # type: ignore[import-untyped] # it ships no types

from shim.domain.errors import FailedPrecondition, reason_of

_EVENTS = (
    flags.CREATE
    | flags.CLOSE_WRITE
    | flags.ATTRIB
    | flags.MOVED_FROM
    | flags.MOVED_TO
    | flags.DELETE
    | flags.DELETE_SELF
    | flags.MOVE_SELF
)


class FilesWatch:
    """inotify watches on files' directories and all their parents, because a file may appear, vanish or be replaced."""

    def __init__(self, paths: Callable[[], Iterable[Path]]) -> None:
        """Watch the files and directories that `paths` returns at each check.

        Raise FailedPrecondition without inotify.
        """
        self._paths = paths
        try:
            self._inotify = INotify()
        except OSError as error:
            raise FailedPrecondition(f"watch files of settings: inotify: {reason_of(error)}") from error
        self._seen = self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._inotify.close()

    def wait_changed(self, seconds: float | None) -> bool:
        """Wait until a file differs from the last check; return False after `seconds` without a change."""
        milliseconds = None if seconds is None else int(seconds * 1000)
        self._inotify.read(timeout=milliseconds, read_delay=0)
        now = self._look()
        changed, self._seen = now != self._seen, now
        return changed

    def _look(self) -> dict[Path, object]:
        """Arm the watches, then return the identity of each file's content: in this order no change is missed."""
        paths = list(self._paths())
        for directory in {above for path in paths for place in (path, path.resolve()) for above in place.parents}:
            self._add(directory)
        for path in paths:
            self._add(path)
        return {path: _identity(path) for path in paths}

    def _add(self, path: Path) -> None:
        with suppress(OSError):  # missing or not a directory: its parent reports changes
            self._inotify.add_watch(path, _EVENTS | flags.ONLYDIR)


def _identity(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode
