"""The seccomp profile of pause: the part of Docker's profile for a program that waits for signals.

Docker's profile has some 400 system calls for three architectures, which runc compiles into a filter for each
container. Pause makes a dozen calls. With a profile of these calls pause starts 10 % faster, and can do less harm while
the pod lives (docs/performance.md, docs/docker-quirks.md).
"""

import msgspec

from shim.dockerd.runc import has_runc_shim
from shim.engine.answers import EngineInfo
from shim.engine.connection import ApiVersion
from shim.view.records import ImageRecord

_ENTRYPOINT = ("/pause",)
"""Entrypoint of Kubernetes's pause image and its copies. The calls of other programs are unknown."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Names of architectures: in images by the kernel's name. An emulator of another architecture may make any call."""

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
"""Calls of runc and its Go runtime between setting the filter and executing pause. Without no_new_privs, which pause
has, runc would set the filter earlier and make more calls."""
_NAMESPACE_FLAGS = 0x7E020000
"""Flags of clone(2) for new namespaces, which Docker's profile refuses too."""

_ENOSYS = 38
"""Error of all other calls: a C library works around a call that the kernel does not know. It also saves the second
filter that runc would add to return ENOSYS for calls that are newer than the profile."""
ENOSYS_API = (1, 42)
"""First Engine API with `defaultErrnoRet` (23.0)."""

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
"""In Docker's form, for the daemon's native architecture only. Docker's profile contains each of its rules."""


def pause_profile(image: ImageRecord, *, info: EngineInfo, api_version: ApiVersion, runtime: str) -> str:
    """Return the profile for a pause container of this image that replaces Docker's; "" to keep Docker's.

    Only for the pause program of Kubernetes, and for runc, since other OCI runtimes may need other calls. Not on an
    Engine whose only error is EPERM: glibc does not fall back from `clone3` then.
    """
    if api_version < ENOSYS_API:
        return ""
    is_native = image.architecture == _ARCHITECTURES.get(info.architecture)
    known = image.entrypoint == _ENTRYPOINT and is_native and has_runc_shim(info, runtime)
    return PROFILE if known else ""
