"""Checkpoint files that cannot be used now, kept in directories below: damaged ones, and those of a newer server.

A damaged file is kept for people. One of a newer version is kept for the server that wrote it: it comes back when such
a server is started again, unless it has become wrong. It becomes wrong when this server changes the state of its pod,
which it does in a file of its own version: a newer server can read that too.
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
    """Move a damaged file below `directory`, where none replaces another, and return its new path. Raise OSError."""
    corrupt = directory / CORRUPT
    corrupt.mkdir(mode=0o700, exist_ok=True)
    number = 1
    while os.path.lexists(target := corrupt / f"{path.name}.corrupt-{number}"):
        number += 1
    _move(path, target)
    return target


class NewerFiles:
    """The files of newer servers, one for each sandbox at most. The caller keeps two writers of one sandbox apart."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, that of the checkpoints, which exists."""
        self._directory = directory
        self._newer = directory / NEWER
        self._ids = {path.name.removesuffix(SUFFIX) for path in self._newer.glob(f"[!.]*{SUFFIX}")}

    def take_back(self, check: Callable[[bytes, str], object], *, most: int) -> None:
        """Put each file back that this server can read: `check` raises for the content and the sandbox of any other.

        A file of more than `most` bytes stays where it is.

        It replaces what an older server has written for the sandbox since, which is a rebuilt checkpoint: had that
        server changed it, this file would be gone.
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
        """Move the file of a newer server here, and return its new path. Raise OSError."""
        self._newer.mkdir(mode=0o700, exist_ok=True)
        target = self._newer / path.name
        _move(path, target)
        self._ids.add(path.name.removesuffix(SUFFIX))
        return target

    def drop(self, sandbox_id: str) -> None:
        """Remove the file of a sandbox whose state is about to change; none is fine. Raise ShimError.

        Before the change: after a crash in between there is the rebuilt checkpoint, and nothing that contradicts it.
        """
        if sandbox_id in self._ids:
            atomic_files.remove_file(self._path(sandbox_id))
            self._ids.discard(sandbox_id)

    def try_drop(self, sandbox_id: str) -> None:
        """Run `drop` for a change that must not fail; log its error instead."""
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
