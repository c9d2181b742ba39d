"""System calls on mounts and namespaces that Python 3.11 does not offer. All functions raise OSError.

They use ctypes instead of `pyroute2.netns`: importing any part of pyroute2 loads all of it, at a cost of 9.5 MiB of
resident memory and 0.2 s, and its `remove` does not check the result of umount.
"""

import ctypes
import os
from pathlib import Path

CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_SHARED = 0x100000
MNT_DETACH = 2
UMOUNT_NOFOLLOW = 8

# The C library that this process has loaded. ctypes.util.find_library would fork ldconfig or a compiler to find it.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
)
_libc.umount2.argtypes = (ctypes.c_char_p, ctypes.c_int)
_libc.setns.argtypes = (ctypes.c_int, ctypes.c_int)


def bind_mount(source: str | Path, target: Path) -> None:
    """Bind-mount `source` on `target`, with all mounts below it."""
    _mount(source, target, flags=MS_BIND | MS_REC)


def share_mount(target: Path) -> None:
    """Make the mount on `target` shared with other mount namespaces. Raise EINVAL if nothing is mounted there."""
    _mount("none", target, flags=MS_SHARED)


def unmount(target: Path) -> None:
    """Detach the topmost mount from `target` at once, even if it is in use. Raise EINVAL if nothing is mounted."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW), target)


def enter_network(descriptor: int, *, path: Path) -> None:
    """Move the calling thread into an open network namespace for good. `path` names it in errors."""
    _check(_libc.setns(descriptor, CLONE_NEWNET), path)


def _mount(source: str | Path, target: Path, *, flags: int) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None), target)


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
