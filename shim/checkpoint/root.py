"""The directory of what must outlive a restart (setting `root_directory`), and what is in it."""

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
"""Files of checkpoints of containers while they are made."""

_OWN = frozenset({LOCK, SANDBOXES, LIMITS, POD_CIDR, ENGINE, RESOLV_CONF, ORDERS, CHECKPOINTING, "logs.lock"})
"""All that a server makes there; the last one was made by servers before this one."""
_EXPECTED = frozenset({"sandbox", "lost+found"})
"""cri-dockerd's checkpoints, for its flag names the same directory, and what is at the root of a file system."""
_SHOWN = 3


def ensure_root_directory(path: Path) -> None:
    """Make `path` and what is missing above it; it is 0700 afterwards.

    Raise FailedPrecondition where others may read it and it holds files of others: to close a directory that
    programs share would keep them out of what is theirs.
    """
    if others := _names_of_others(path):
        shown = ", ".join(sorted(others)[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
        raise FailedPrecondition(
            f"root_directory {path} is not the server's own: it is open to other users and holds {shown}; name a new "
            f"or empty directory, or make this one private: chmod 0700 {path}"
        )
    atomic_files.ensure_private_directory(path)


def remove_checkpointing(path: Path) -> None:
    """Remove what checkpoints of an earlier server have left, as far as that can be done."""
    shutil.rmtree(path / CHECKPOINTING, ignore_errors=True)


def remove_state(path: Path) -> None:
    """Remove what servers made in `path`, and `path` itself when nothing else is in it."""
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
    """Return the names in a directory that is open to others, but for those that a server has made."""
    with atomic_files.failing_as(f"list root_directory {path}"):
        if not path.is_dir() or not path.stat().st_mode & 0o077:
            return set()
        names = {entry.name for entry in path.iterdir()}
    others = names - _OWN - _EXPECTED
    files = (POD_CIDR, ENGINE)
    return {name for name in others if not any(atomic_files.is_temporary(name, target=file) for file in files)}
