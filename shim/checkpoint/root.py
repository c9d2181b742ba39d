"""The directory of state that must survive a restart (setting `root_directory`), and its entries."""

import shutil
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

_OWN = frozenset({LOCK, SANDBOXES, LIMITS, POD_CIDR, ENGINE, RESOLV_CONF, ORDERS, CHECKPOINTING, "logs.lock"})
"""All entries that a server creates; earlier servers created the last."""
_EXPECTED = frozenset({"sandbox", "lost+found"})
"""cri-dockerd's checkpoints, whose flag names the same directory, and an entry at the root of a file system."""
_SHOWN = 3


def ensure_root_directory(path: Path) -> None:
    """Create `path` and its missing parents; set its mode to 0700.

    Raise FailedPrecondition if others may read it and it contains foreign files: closing a directory that programs
    share would lock them out.
    """
    if others := _names_of_others(path):
        shown = ", ".join(sorted(others)[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        raise FailedPrecondition(
            f"root_directory {path} is not the server's own: it is open to other users and holds {shown}; name a new "
            f"or empty directory, or make this one private: chmod 0700 {path}"
        )
    atomic_files.ensure_private_directory(path)


def remove_checkpointing(path: Path) -> None:
    """Remove temporary files of an earlier server's container checkpoints, as far as possible."""
    shutil.rmtree(path / CHECKPOINTING, ignore_errors=True)


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
