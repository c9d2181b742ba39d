"""System calls on mounts and namespaces that Python 3.11 has no function for. All raise OSError.

It imports little, because the program starts anew for each container: `_ctypes` is the part of ctypes that is written
in C, and its Python part takes a fifth of the program's start.
"""

from __future__ import annotations

import os
import struct
from _ctypes import FUNCFLAG_CDECL, FUNCFLAG_USE_ERRNO, CFuncPtr, _SimpleCData, dlopen, dlsym, get_errno

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_RDONLY = 1
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_IDMAP = 0x100000

_OPEN_TREE = 428
_MOVE_MOUNT = 429
_OPENAT2 = 437
_MOUNT_SETATTR = 442
"""These numbers are the same on all architectures (asm-generic/unistd.h)."""

_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_IN_ROOT = 0x10

_CAPABILITIES_V3 = 0x20080522


class _Int(_SimpleCData):  # type: ignore[type-arg] # generic in its stubs only
    _type_ = "i"


class _Long(_SimpleCData):  # type: ignore[type-arg] # generic in its stubs only
    _type_ = "l"


class _Function(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Int


class _SystemCall(CFuncPtr):
    _flags_ = FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_LIBRARY = dlopen(None, 0)  # type: ignore[arg-type] # None is the program itself
"""The C library, which this process has loaded."""
_mount = _Function(dlsym(_LIBRARY, "mount"))
_umount2 = _Function(dlsym(_LIBRARY, "umount2"))
_unshare = _Function(dlsym(_LIBRARY, "unshare"))
_setns = _Function(dlsym(_LIBRARY, "setns"))
_setfsuid = _Function(dlsym(_LIBRARY, "setfsuid"))
_setfsgid = _Function(dlsym(_LIBRARY, "setfsgid"))
_capset = _Function(dlsym(_LIBRARY, "capset"))
_syscall = _SystemCall(dlsym(_LIBRARY, "syscall"))


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: bytes = b"") -> None:
    """Mount a file system, or do what `flags` say (mount(2))."""
    result = _mount(os.fsencode(source), os.fsencode(target), kind.encode() or None, _Long(flags), data or None)
    check(result, f"mount {kind or source} on {target}")


def unmount(target: str) -> None:
    """Detach the topmost mount of `target`, even if it is in use; EINVAL if there is no mount."""
    check(_umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW), f"unmount {target}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces of these kinds."""
    check(_unshare(flags), "unshare")


def set_namespace(descriptor: int, kind: int) -> None:
    """Enter an open namespace."""
    check(_setns(descriptor, kind), "setns")


def clone_tree(opened: int, *, recursive: bool = False) -> int:
    """Return a descriptor of a detached clone of the mount of an open file or directory, with this file as its root.

    `recursive` includes the mounts below it.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    return check(call(_OPEN_TREE, opened, b"", flags), f"clone the mount of {os.readlink(f'/proc/self/fd/{opened}')}")


def attach(tree: int, target: str) -> None:
    """Attach a detached clone at `target`."""
    result = call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    check(result, f"attach a mount to {target}")


def map_ids(tree: int, user_namespace: int, *, private: bool) -> None:
    """Map the ids of a detached clone. EINVAL if its file system does not support id-mapped mounts.

    Mounts below its top keep their ids. `private` also takes it out of mount propagation.
    """
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_IDMAP, 0, MS_PRIVATE if private else 0, user_namespace)
    result = call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    check(result, "map the ids of a mount")


def forbid_writes(tree: int) -> None:
    """Make a detached clone read-only, also for root."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    check(call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes)), "make a mount read-only")


def set_file_ids(uid: int, gid: int) -> None:
    """Access files with these host ids from now on, and keep all capabilities.

    setfsuid(2) drops capabilities for file access, so they are set again.
    """
    capabilities = _capabilities()
    _setfsgid(_Long(gid))
    _setfsuid(_Long(uid))
    set_capabilities(**capabilities)


def open_inside(directory: int, path: str) -> int:
    """Return an O_PATH descriptor of `path` below an open directory; do not follow any link."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS)
    return check(call(_OPENAT2, directory, os.fsencode(path), how, len(how)), f"open {path}")


def _capabilities() -> dict[str, int]:
    """Return this process's capability sets: masks of capability numbers, by the parameters of set_capabilities."""
    with open("/proc/self/status", "rb") as status:
        fields = dict(line.split(b":", 1) for line in status.read().split(b"\n") if line.startswith(b"Cap"))
    names = {"effective": b"CapEff", "permitted": b"CapPrm", "inheritable": b"CapInh"}
    return {name: int(fields[field], 16) for name, field in names.items()}


def set_capabilities(*, effective: int, permitted: int, inheritable: int) -> None:
    """Set the capability sets of this process; each is a mask of capability numbers."""
    masks = (effective, permitted, inheritable)
    sets = struct.pack("=6I", *(mask & 0xFFFFFFFF for mask in masks), *(mask >> 32 for mask in masks))
    check(_capset(struct.pack("=Ii", _CAPABILITIES_V3, 0), sets), "capset")


def call(number: int, *arguments: int | bytes) -> int:
    """Make a system call by number; return its result, -1 for a failure."""
    words = (each if isinstance(each, bytes) else _Long(each) for each in arguments)
    return int(_syscall(_Long(number), *words))


def check(result: int, what: str) -> int:
    """Return a successful result. Raise OSError for a failure, with a text that begins with `what`."""
    if result < 0:
        number = get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
