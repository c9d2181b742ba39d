"""The system calls of a process that joins a container, which Python 3.11 has no function for. All raise OSError.

None of them loads anything when it is called: a process that has entered a container would load it from there.
"""

from __future__ import annotations

import ctypes
import os

from shim.oci_runtime.kernel import call, check, libc, set_capabilities

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
"""Numbers of system calls, by architecture."""

MACHINE = os.uname().machine
KNOWN_MACHINE = MACHINE in _NUMBERS
_NUMBER = _NUMBERS.get(MACHINE, {})

_locked = ctypes.PyDLL(None, use_errno=True)
"""Calls the C library without a change of Python's lock, which a copy of this process would not notice."""
_locked.syscall.restype = ctypes.c_long
_locked.prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)


class _Program(ctypes.Structure):
    """struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_INSTRUCTION_BYTES = 8

with open("/proc/sys/kernel/cap_last_cap", "rb") as _file:
    LAST_CAPABILITY = int(_file.read())
    """The highest number of a capability that this kernel has."""


def _prctl(option: int, value: int, third: int = 0) -> None:
    check(_locked.prctl(option, value, third, 0, 0), "prctl")


def set_name(name: bytes) -> None:
    """Show this process under a name of at most 15 bytes."""
    check(libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0), "prctl")


def hide_memory() -> None:
    """Let only the host's root trace this process and its children, or read them through /proc."""
    _prctl(_PR_SET_DUMPABLE, 0)


def fork_sibling() -> int:
    """Fork a child of this process's parent; return its pid, 0 in the child. For a process with one thread."""
    flags = ctypes.c_long(_CLONE_PARENT | _SIGCHLD)
    return check(_locked.syscall(ctypes.c_long(_NUMBER["clone"]), flags, *(ctypes.c_long(0),) * 4), "clone")


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A change of its identity undoes that."""
    _prctl(_PR_SET_PDEATHSIG, SIGKILL)


def keep_capabilities(keep: bool) -> None:
    """Keep the permitted capabilities when root becomes another user, or do not."""
    _prctl(_PR_SET_KEEPCAPS, int(keep))


def drop_from_bounding_set(capability: int) -> None:
    """Give a capability up for good, for this process and its children."""
    _prctl(_PR_CAPBSET_DROP, capability)


def set_process_capabilities(*, effective: int, permitted: int, inheritable: int, ambient: int) -> None:
    """Set the four sets of this process; each is a mask of capability numbers."""
    sets = (ctypes.c_uint32 * 6)()
    for place, mask in enumerate((effective, permitted, inheritable)):
        sets[place], sets[place + 3] = mask & 0xFFFFFFFF, mask >> 32
    set_capabilities(sets)
    for capability in range(ambient.bit_length()):
        if ambient >> capability & 1:
            _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def forbid_new_privileges() -> None:
    """Have no program that this process executes gain privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def join_session_keyring(name: bytes) -> None:
    """Join the session keyring of this name, or make it."""
    check(call(_NUMBER["keyctl"], _JOIN_SESSION_KEYRING, name), "join a session keyring")


def install_filter(instructions: bytes, *, flags: int) -> None:
    """Install a seccomp filter, as the instructions of classic BPF that the kernel takes."""
    program = _Program(len(instructions) // _INSTRUCTION_BYTES, instructions)
    result = libc.syscall(
        ctypes.c_long(_NUMBER["seccomp"]),
        ctypes.c_ulong(_SECCOMP_SET_MODE_FILTER),
        ctypes.c_ulong(flags),
        ctypes.byref(program),
    )
    check(result, "install a seccomp filter")


def io_priority(pid: int) -> int:
    """Return the I/O priority of a process; 0 where none was set."""
    return check(call(_NUMBER["ioprio_get"], _IOPRIO_WHO_PROCESS, pid), "read an I/O priority")


def set_io_priority(priority: int) -> None:
    """Set the I/O priority of this process."""
    check(call(_NUMBER["ioprio_set"], _IOPRIO_WHO_PROCESS, 0, priority), "set the I/O priority")


def watch_children() -> int:
    """Return a descriptor that is readable when a child of this process has ended, with one `struct signalfd_siginfo`.

    SIGCHLD is blocked from now on, also in what is forked, and no signal is ignored any more: who
    started the server may have ignored some, and Python does. What the
    server has blocked stays so: signals for all its processes do not end the program before the server.
    """
    signals = _signals(_SIGCHLD)
    check(libc.sigprocmask(_SIG_BLOCK, signals, None), "sigprocmask")
    for number in range(1, _FIRST_REAL_TIME_SIGNAL):
        libc.signal(number, None)  # fails for SIGKILL and SIGSTOP
    return check(libc.signalfd(-1, signals, os.O_NONBLOCK | os.O_CLOEXEC), "signalfd")


def unblock_signals() -> None:
    """Block no signal."""
    check(libc.sigprocmask(_SIG_SETMASK, _signals(), None), "sigprocmask")


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
