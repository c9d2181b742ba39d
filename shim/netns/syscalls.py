"""The system calls on namespaces that Python 3.11 has no function for. All raise OSError.

ctypes, and not `pyroute2.netns`: importing any part of pyroute2 loads all of it, which beside gRPC and the
Docker client costs 9.5 MiB of resident memory and 0.2 s, and its `remove` does not check what umount
returned.
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

# The C library of this process: ctypes.util.find_library would fork ldconfig or a compiler to find it.
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
    """Show `source`, and what is mounted below it, on `target` as well."""
    _mount(source, target, flags=MS_BIND | MS_REC)


def share_mount(target: Path) -> None:
    """Make mounts and unmounts below `target` propagate to other mount namespaces; EINVAL if it is no mount."""
    _mount("none", target, flags=MS_SHARED)


def unmount(target: Path) -> None:
    """Take the topmost mount off `target` at once, although it may be in use; EINVAL if there is none."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW), target)


def enter_network(descriptor: int, *, path: Path) -> None:
    """Move the calling thread, for the rest of its life, into an open network namespace; `path` names it."""
    _check(_libc.setns(descriptor, CLONE_NEWNET), path)


def _mount(source: str | Path, target: Path, *, flags: int) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, flags, None), target)


def _check(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
