"""Files of containers that are to go on from a checkpoint: a directory for each, from its create to its start.

The OCI runtime removes the directory after the start, since the files hold the container's memory.
"""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from shim.base import atomic_files
from shim.checkpoint.root import RESTORING
from shim.criu.program import search_path
from shim.oci_runtime.order import Restore
from shim.runtime import Runtime

_BYTES_PER_SECOND = 32 << 20
"""A slow disk, from which a start reads a checkpoint."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of a checkpoint that a new container goes on from."""

    directory: Path
    """Checked, and in the directory that `root` returns."""

    def hand_over(self, rt: Runtime, container_id: str) -> Restore:
        """Give the files to a container that Docker has made, and return the order for it. Raise ShimError."""
        own = root(rt) / container_id
        with atomic_files.failing_as(f"hand over the checkpoint of container {container_id}"):
            self.directory.rename(own)
        return Restore(directory=str(own), path=search_path(os.environ))


def root(rt: Runtime) -> Path:
    """Return the directory of all such files."""
    return rt.config.root_directory / RESTORING


def forget(rt: Runtime, container_id: str) -> None:
    """Remove the files of a container; a container without any is fine."""
    _remove(root(rt) / container_id)


def start_seconds(rt: Runtime, container_id: str) -> float:
    """Return how much longer the start of a container takes because of its checkpoint."""
    files = (path for path in (root(rt) / container_id).rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files) / _BYTES_PER_SECOND


def keep_only(rt: Runtime, container_ids: Collection[str], *, before: float) -> None:
    """Remove the files of all others that are older than `before` (seconds since the epoch).

    These containers were removed externally, or an earlier server has crashed before it made them.
    """
    directory = root(rt)
    for path in directory.iterdir() if directory.is_dir() else ():
        with suppress(FileNotFoundError):  # its container has been removed in the meantime
            if path.name not in container_ids and path.stat().st_mtime < before:
                _remove(path)


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.error("failed to remove files of a checkpoint", path=str(path), error=error)
