"""The seccomp profile of pause: the system calls of a program that waits for signals, out of Docker's own profile.

Docker's profile has some 400 calls for three architectures, which runc compiles into a filter for each container. Pause
makes a dozen calls. With a profile of those its start takes a tenth less, and the process that lives as long as the pod
can do less (docs/performance.md, docs/docker-quirks.md).
"""

import msgspec

from shim.engine.runc import has_runc_shim
from shim.runtime import Runtime
from shim.view.records import ImageRecord

_ENTRYPOINT = ("/pause",)
"""Of Kubernetes's pause image and its copies. What another program needs is not known."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name and that of images. A program of another architecture runs in an emulator, which makes any call."""

_OF_PAUSE = (
    *("exit", "exit_group", "getpid", "gettid", "kill", "pause", "poll", "ppoll", "restart_syscall", "tgkill"),
    *("rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait"),
    *("signalfd4", "sigaltstack", "wait4", "waitid", "write", "writev"),
)
_OF_LIBC = (
    *("access", "arch_prctl", "brk", "clock_gettime", "clock_nanosleep", "faccessat", "fstat", "getrandom", "ioctl"),
    *("madvise", "mmap", "mprotect", "mremap", "munmap", "nanosleep", "newfstatat", "prctl", "prlimit64", "readlink"),
    *("readlinkat", "rseq", "set_robust_list", "set_tid_address", "uname"),
)
_OF_RUNC = (
    *("close", "close_range", "dup3", "epoll_ctl", "epoll_pwait", "execve", "execveat", "fcntl", "fstatfs", "futex"),
    *("getdents64", "lseek", "openat", "openat2", "pipe2", "read", "sched_getaffinity", "sched_yield", "statx"),
)
"""From when runc has set the filter to when pause begins, and those of Go. Pause gains no privileges
(no_new_privs), or runc would set it earlier, and make more calls."""
_NAMESPACE_FLAGS = 0x7E020000
"""Flags of clone(2) for new namespaces, which Docker's profile refuses too."""

_ENOSYS = 38
"""The error of all other calls: a C library goes on without a call that the kernel does not know. It also spares runc a
second filter, by which it gives that error for calls that are newer than the profile."""
ENOSYS_API = (1, 42)
"""First API whose Engines know `defaultErrnoRet` (23.0)."""

PROFILE = msgspec.json.encode(
    {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": _ENOSYS,
        "syscalls": [
            {"names": sorted({*_OF_PAUSE, *_OF_LIBC, *_OF_RUNC}), "action": "SCMP_ACT_ALLOW"},
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": _NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
        ],
    }
).decode()
"""In Docker's form, for the daemon's own architecture alone. Each of its rules is also one of Docker's own profile."""


def pause_profile(rt: Runtime, image: ImageRecord, *, runtime: str) -> str:
    """Return the profile for a pause container of this image in place of Docker's own; empty for none.

    None for another program than the pause of Kubernetes, and for another OCI runtime than runc, which may need calls
    that runc does not make. Nor on an Engine that knows no error but EPERM: glibc does not do without `clone3` then.
    """
    if rt.engine.api_version < ENOSYS_API:
        return ""
    info = rt.facts.info()
    is_native = image.architecture == _ARCHITECTURES.get(info.architecture)
    known = image.entrypoint == _ENTRYPOINT and is_native and has_runc_shim(info, runtime)
    return PROFILE if known else ""
