"""Files of containers that will continue from a checkpoint: a directory per container, from create to start.

The OCI runtime removes the directory after the start, because it contains the container's memory.
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
"""The assumed speed of a slow disk from which a start reads a checkpoint."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """The files of a checkpoint from which a new container continues."""

    directory: Path
    """A directory below `root`, whose files have been checked."""
    highest_pid: int
    """The highest id of a process in any container of the pod's checkpoint."""

    def hand_over(self, rt: Runtime, container_id: str) -> Restore:
        """Move the files to a container that Docker has created; return its order. Raise ShimError."""
        own = root(rt) / container_id
        with atomic_files.failing_as(f"hand over the checkpoint of container {container_id}"):
            self.directory.rename(own)
        return Restore(directory=str(own), path=search_path(os.environ), highest_pid=self.highest_pid)


def root(rt: Runtime) -> Path:
    """Return the parent directory of all checkpoints to restore."""
    return rt.config.root_directory / RESTORING


def forget(rt: Runtime, container_id: str) -> None:
    """Remove the files of a container, if any."""
    _remove(root(rt) / container_id)


def start_seconds(rt: Runtime, container_id: str) -> float:
    """Return the additional seconds that the start of a container may take because of its checkpoint."""
    files = (path for path in (root(rt) / container_id).rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files) / _BYTES_PER_SECOND


def keep_only(rt: Runtime, container_ids: Collection[str], *, before: float) -> None:
    """Remove the files of all other containers, if older than `before` (seconds since the epoch).

    Such a container was removed externally, or an earlier server crashed before it created the container.
    """
    directory = root(rt)
    for path in directory.iterdir() if directory.is_dir() else ():
        with suppress(FileNotFoundError):  # the container has been removed meanwhile
            if path.name not in container_ids and path.stat().st_mtime < before:
                _remove(path)


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.error("failed to remove files of a checkpoint", path=str(path), error=error)
