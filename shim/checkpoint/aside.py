"""Unusable checkpoint files, moved to subdirectories: damaged files, and files of a newer server.

A damaged file is kept for people. A file of a newer version is kept for the server that wrote it, and is restored when
such a server starts again, unless it is outdated by then. It becomes outdated when this server changes the state of the
pod, which writes a file in this server's version: a newer server can read that too.
"""

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.checkpoint.envelope import Newer, Untrusted
from shim.domain.errors import ShimError, reason_of

CORRUPT = "corrupt"
NEWER = "newer"
SUFFIX = ".json"

log = structlog.get_logger(__name__)


def moved_to_corrupt(path: Path, *, directory: Path) -> Path:
    """Move a damaged file below `directory`, without replacing another, and return its new path. Raise OSError."""
    corrupt = directory / CORRUPT
    corrupt.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while os.path.lexists(target := corrupt / f"{path.name}.corrupt-{number}"):
        number += 1
    _move(path, target)
    return target


class NewerFiles:
    """The files of newer servers, at most one per sandbox. The caller serializes writers of a sandbox."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, the existing directory of the checkpoints."""
        self._directory = directory
        self._newer = directory / NEWER
        self._ids = {path.name.removesuffix(SUFFIX) for path in self._newer.glob(f"[!.]*{SUFFIX}")}

    def take_back(self, check: Callable[[bytes, str], object], *, most: int) -> None:
        """Restore each file that this server can read: `check` raises for the content and sandbox of others.

        A file of more than `most` bytes stays.

        A restored file replaces the rebuilt checkpoint that an older server has written since: if that server had
        changed the pod, the file would be gone.
        """
        for sandbox_id in sorted(self._ids):
            path = self._path(sandbox_id)
            try:
                check(atomic_files.read_regular(path, most=most), sandbox_id)
                _move(path, self._directory / path.name)
            except Newer:
                continue
            except Untrusted as error:
                log.error("checkpoint of a newer server is damaged", sandbox=sandbox_id, file=str(path), error=error)
            except OSError as error:
                reason = reason_of(error)
                log.error("failed to restore checkpoint", sandbox=sandbox_id, file=str(path), error=reason)
            else:
                log.info("restored checkpoint of a newer server", sandbox=sandbox_id)
                self._ids.discard(sandbox_id)

    def keep(self, path: Path) -> Path:
        """Move a newer server's file here, and return its new path. Raise OSError."""
        self._newer.mkdir(mode=0o700, exist_ok=True)
        target = self._newer / path.name
        _move(path, target)
        self._ids.add(path.name.removesuffix(SUFFIX))
        return target

    def drop(self, sandbox_id: str) -> None:
        """Remove the file of a sandbox whose state is about to change, if any. Raise ShimError.

        Called before the change: after a crash in between there is only the rebuilt checkpoint, and no file that
        contradicts it.
        """
        if sandbox_id in self._ids:
            atomic_files.remove_file(self._path(sandbox_id))
            self._ids.discard(sandbox_id)

    def try_drop(self, sandbox_id: str) -> None:
        """Like `drop`, for a change that must not fail: an error is logged."""
        try:
            self.drop(sandbox_id)
        except ShimError as error:
            log.warning("failed to remove checkpoint of a newer server", sandbox=sandbox_id, error=error)

    def _path(self, sandbox_id: str) -> Path:
        return self._newer / f"{sandbox_id}{SUFFIX}"


def _move(path: Path, target: Path) -> None:
    path.rename(target)
    atomic_files.sync_directory(target.parent)
    atomic_files.sync_directory(path.parent)
