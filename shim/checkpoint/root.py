"""The directory of state that must survive a restart (setting `root_directory`), and its entries."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shim.base import atomic_files
from shim.domain.errors import FailedPrecondition

LOCK = "lock"
SANDBOXES = "sandboxes"
LIMITS = "limits"
POD_CIDR = "pod-cidr"
ENGINE = "engine.json"
RESOLV_CONF = "resolv-conf"
ORDERS = "oci"
CHECKPOINTING = "checkpointing"
"""Temporary files of container checkpoints in progress."""
RESTORING = "restoring"
"""Files of containers that will continue from a checkpoint, until their start."""

_OWN = frozenset(
    {LOCK, SANDBOXES, LIMITS, POD_CIDR, ENGINE, RESOLV_CONF, ORDERS, CHECKPOINTING, RESTORING, "logs.lock"}
)
"""All entries that a server creates. Only earlier releases created the last."""
_EXPECTED = frozenset({"sandbox", "lost+found"})
"""Foreign entries that are accepted: cri-dockerd's checkpoints, which may share the directory, and `lost+found`."""
_SHOWN = 3


def ensure_root_directory(path: Path) -> None:
    """Create `path` and its missing parents; set its mode to 0700.

    Raise FailedPrecondition if others may read it and it contains foreign files, because mode 0700 would lock other
    programs out of a shared directory.
    """
    if others := _names_of_others(path):
        shown = ", ".join(sorted(others)[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        raise FailedPrecondition(
            f"root_directory {path} is not the server's own: it is open to other users and holds {shown}; name a new "
            f"or empty directory, or make this one private: chmod 0700 {path}"
        )
    atomic_files.ensure_private_directory(path)


@contextmanager
def locked_root_directory(path: Path) -> Iterator[None]:
    """Hold the lock of the directory, created if missing, because two servers would undo each other's work.

    Remove temporary files of an earlier server's container checkpoints. Raise FailedPrecondition if another server
    holds the lock.
    """
    ensure_root_directory(path)
    with atomic_files.failing_as(f"open {path / LOCK}"):
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, path)
        shutil.rmtree(path / CHECKPOINTING, ignore_errors=True)
        yield
    finally:
        os.close(lock)


def remove_state(path: Path) -> None:
    """Remove the server's entries in `path`, and `path` itself if nothing else is in it."""
    with atomic_files.failing_as(f"remove root_directory {path}"):
        if not path.is_dir():
            return
        for entry in path.iterdir():
            if entry.name not in _OWN:
                continue
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        if not any(path.iterdir()):
            path.rmdir()


def _names_of_others(path: Path) -> set[str]:
    """Return the foreign names in a directory that is open to others."""
    with atomic_files.failing_as(f"list root_directory {path}"):
        if not path.is_dir() or not path.stat().st_mode & 0o077:
            return set()
        names = {entry.name for entry in path.iterdir()}
    others = names - _OWN - _EXPECTED
    files = (POD_CIDR, ENGINE)
    return {name for name in others if not any(atomic_files.is_temporary(name, target=file) for file in files)}


def _take(lock: int, path: Path) -> None:
    # lockf locks for this process alone. A lock of flock(2) would be inherited by a child between fork and exec.
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FailedPrecondition(f"root_directory {path} is in use by another server") from None
