"""The kernel's list of mounts, and unmounting everything below a directory.

Daemons bind directories and files on themselves, which `os.path.ismount` does not detect, and mount several times on
one path. So the list decides, and the newest mount goes first.
"""

import ctypes
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from integration.node.commands import NodeError

_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_OCTAL = re.compile(rb"\\([0-7]{3})")
_DELETED = b"//deleted"
_IN_USE_SECONDS = 60.0
_TICK_SECONDS = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount: its id in the kernel, and its path."""

    id: int
    path: Path


def mounts() -> list[Mount]:
    """Return the mounts of this mount namespace, newest last, as mountinfo(5) lists them."""
    # Split at `\n` and blanks alone: paths of mounts may contain all other characters.
    fields = (line.split(b" ") for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n") if line)
    return [Mount(int(line[0]), _path(line[4])) for line in fields]


def mount_paths() -> frozenset[str]:
    """Return the paths of all mounts."""
    return frozenset(str(mount.path) for mount in mounts())


def mounts_below(directory: Path) -> list[Mount]:
    """Return the mounts on a directory and below it, newest last; `directory` must be free of symbolic links."""
    return [mount for mount in mounts() if mount.path.is_relative_to(directory)]


def unmount_all(directory: Path, *, abandon: bool = False) -> None:
    """Unmount all reachable mounts on a directory and below it.

    `abandon` fails pending requests of a file system, and detaches mounts that are in use. Otherwise a mount in use is
    retried, because killed processes take a moment to end. Raises NodeError for mounts that stay in use.
    """
    flags = _UMOUNT_NOFOLLOW | (_MNT_FORCE | _MNT_DETACH if abandon else 0)
    deadline = time.monotonic() + _IN_USE_SECONDS
    # Listed again after each: a mount may have several paths, or have hidden others.
    while present := [mount for mount in mounts_below(directory) if _is_reachable(mount)]:
        failures = _unmount_one(reversed(present), flags)
        if len(failures) == len(present):
            if time.monotonic() > deadline:
                raise NodeError(f"unmount all below {directory}: {'; '.join(failures)}")
            time.sleep(_TICK_SECONDS)


def _unmount_one(candidates: Iterable[Mount], flags: int) -> list[str]:
    """Unmount the first mount that can be unmounted, and return why those before it could not."""
    failures = []
    for mount in candidates:
        if _libc.umount2(os.fsencode(mount.path), flags) == 0:
            break
        failures.append(f"{mount.path}: {os.strerror(ctypes.get_errno())}")
    return failures


def _path(field: bytes) -> Path:
    text = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field)
    return Path(os.fsdecode(text.removesuffix(_DELETED)))


def _is_reachable(mount: Mount) -> bool:
    """Return whether the path leads to this mount, and not to a mount that hides it."""
    try:
        # O_PATH does not query the file system, which may hang.
        descriptor = os.open(mount.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        lines = Path("/proc/self/fdinfo", str(descriptor)).read_text().splitlines()
    finally:
        os.close(descriptor)
    return f"mnt_id:\t{mount.id}" in lines
