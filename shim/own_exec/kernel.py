"""System calls for joining a container that Python 3.11 does not offer. All functions raise OSError.

No function loads a module or library when called, because inside a container it would come from the image.
"""

from __future__ import annotations

import ctypes
import os

from shim.oci_runtime.kernel import call, check, set_capabilities

SIGKILL = 9
_SIGCHLD = 17

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_KEEPCAPS = 8
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2

_CLONE_PARENT = 0x8000
_JOIN_SESSION_KEYRING = 1
_SECCOMP_SET_MODE_FILTER = 1
_IOPRIO_WHO_PROCESS = 1

_NUMBERS = {
    "x86_64": {"clone": 56, "keyctl": 250, "ioprio_set": 251, "ioprio_get": 252, "seccomp": 317},
    "aarch64": {"clone": 220, "keyctl": 219, "ioprio_set": 30, "ioprio_get": 31, "seccomp": 277},
}
"""System call numbers by architecture."""

MACHINE = os.uname().machine
KNOWN_MACHINE = MACHINE in _NUMBERS
_NUMBER = _NUMBERS.get(MACHINE, {})

_libc = ctypes.CDLL(None, use_errno=True)
_locked = ctypes.PyDLL(None, use_errno=True)
"""The C library, called without releasing Python's GIL: a child of a raw clone(2) could not acquire it again."""
_locked.syscall.restype = ctypes.c_long
_locked.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_INSTRUCTION_BYTES = 8

with open("/proc/sys/kernel/cap_last_cap", "rb") as _file:
    LAST_CAPABILITY = int(_file.read())
    """The highest capability number of this kernel."""


def _prctl(option: int, value: int, third: int = 0) -> None:
    check(_locked.prctl(option, value, third, 0, 0), "prctl")


def set_name(name: bytes) -> None:
    """Set the name of this process, at most 15 bytes."""
    check(_libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0), "prctl")


def hide_memory() -> None:
    """Permit only the host's root to trace this process and its children, or to read them through /proc."""
    _prctl(_PR_SET_DUMPABLE, 0)


def fork_sibling() -> int:
    """Fork a child of this process's parent. Return its pid, 0 in the child. This process must have a single thread."""
    flags = ctypes.c_long(_CLONE_PARENT | _SIGCHLD)
    return check(_locked.syscall(ctypes.c_long(_NUMBER["clone"]), flags, *(ctypes.c_long(0),) * 4), "clone")


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent ends. A later change of identity undoes this."""
    _prctl(_PR_SET_PDEATHSIG, SIGKILL)


def keep_capabilities(keep: bool) -> None:
    """Set whether the permitted capabilities stay when root becomes another user."""
    _prctl(_PR_SET_KEEPCAPS, int(keep))


def drop_from_bounding_set(capability: int) -> None:
    """Drop a capability permanently, for this process and its children."""
    _prctl(_PR_CAPBSET_DROP, capability)


def set_process_capabilities(*, effective: int, permitted: int, inheritable: int, ambient: int) -> None:
    """Set the capability sets of this process; each is a mask of capability numbers."""
    set_capabilities(effective=effective, permitted=permitted, inheritable=inheritable)
    for capability in range(ambient.bit_length()):
        if ambient >> capability & 1:
            _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def forbid_new_privileges() -> None:
    """Prevent programs that this process executes from gaining privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def join_session_keyring(name: bytes) -> None:
    """Join the session keyring `name`, or create it."""
    check(call(_NUMBER["keyctl"], _JOIN_SESSION_KEYRING, name), "join a session keyring")


def install_filter(instructions: bytes, *, flags: int) -> None:
    """Install a seccomp filter of classic BPF instructions."""
    program = _Program(len(instructions) // _INSTRUCTION_BYTES, instructions)
    result = _libc.syscall(
        ctypes.c_long(_NUMBER["seccomp"]),
        ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_ulong(flags),
        ctypes.byref(program),
    )
    check(result, "install a seccomp filter")


def io_priority(pid: int) -> int:
    """Return the I/O priority of a process; 0 if it has none."""
    return check(call(_NUMBER["ioprio_get"], _IOPRIO_WHO_PROCESS, pid), "read an I/O priority")


def set_io_priority(priority: int) -> None:
    """Set the I/O priority of this process."""
    check(call(_NUMBER["ioprio_set"], _IOPRIO_WHO_PROCESS, 0, priority), "set the I/O priority")


def watch_children() -> int:
    """Return a signalfd(2) that becomes readable when a child of this process has ended.

    Block SIGCHLD, also for forked processes. Reset ignored signals, because Python ignores some, and so may the process
    that started the server. Signals that the server has blocked stay blocked, so that a signal to all processes of the
    server does not end the program before the server.
    """
    signals = _signals(_SIGCHLD)
    check(_libc.sigprocmask(_SIG_BLOCK, signals, None), "sigprocmask")
    for number in range(1, _FIRST_REAL_TIME_SIGNAL):
        _libc.signal(number, None)  # fails for SIGKILL and SIGSTOP
    return check(_libc.signalfd(-1, signals, os.O_NONBLOCK | os.O_CLOEXEC), "signalfd")


def unblock_signals() -> None:
    """Unblock all signals."""
    check(_libc.sigprocmask(_SIG_SETMASK, _signals(), None), "sigprocmask")


def _signals(*numbers: int) -> ctypes.Array[ctypes.c_ulong]:
    """Return a `sigset_t`."""
    words = (ctypes.c_ulong * (_SIGSET_BYTES // ctypes.sizeof(ctypes.c_ulong)))()
    for number in numbers:
        words[0] |= 1 << number - 1
    return words


_SIG_BLOCK = 0
_SIG_SETMASK = 2
_SIGSET_BYTES = 128
_FIRST_REAL_TIME_SIGNAL = 32
