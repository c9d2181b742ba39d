"""Reads the attributes of a container's processes from runc's files and from containerd-shim.

containerd keeps the container's `config.json` in the bundle, and runc keeps `state.json`. Only root may write both.
`docker exec` uses the same files, so it too ignores later changes by the container's processes.
"""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shim.base.proc import lines, value_of
from shim.dockerd.runc_files import (
    Unfit,
    began,
    bundle_of,
    is_frozen,
    read_file,
    read_state,
    runc_of,
    shim_of,
    status,
    word,
)
from shim.domain.errors import reason_of
from shim.own_exec import kernel

# fmt: off
_CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)
# fmt: on
"""Names by number, from linux/capability.h."""
_CAPABILITY = {f"CAP_{name}": 1 << number for number, name in enumerate(_CAPABILITIES)}

_NAMESPACES = {
    "ipc": 0x08000000,
    "uts": 0x04000000,
    "net": 0x40000000,
    "pid": 0x20000000,
    "cgroup": 0x02000000,
    "mnt": 0x00020000,
    "user": 0x10000000,
}
"""Kinds by name in /proc, in the order of entering. The user namespace comes last, because a process inside it has no
right to enter namespaces of the host."""
USER_NAMESPACE = "user"

_KNOWN_PROCESS = frozenset(
    {
        "user",
        "args",
        "env",
        "cwd",
        "terminal",
        "consoleSize",
        "capabilities",
        "noNewPrivileges",
        "rlimits",
        "oomScoreAdj",
        "apparmorProfile",
        "selinuxLabel",
    }
)
_KNOWN_USER = frozenset({"uid", "gid", "additionalGids", "umask", "username"})
_KNOWN_LINUX = frozenset(
    {
        "sysctl",
        "resources",
        "cgroupsPath",
        "namespaces",
        "devices",
        "seccomp",
        "maskedPaths",
        "readonlyPaths",
        "mountLabel",
        "rootfsPropagation",
        "uidMappings",
        "gidMappings",
        "netDevices",
    }
)
"""The fields of config.json that the server's exec honours, or that do not affect an exec."""

_SECURITY_MODULES = Path("/sys/kernel/security/lsm")
_WITHOUT_LABELS = frozenset(
    {
        "capability",
        "lockdown",
        "yama",
        "landlock",
        "bpf",
        "integrity",
        "ima",
        "evm",
        "ipe",
        "safesetid",
        "loadpin",
        "tomoyo",
    }
)
"""Security modules that use no process label, so runc sets none. TOMOYO, in Debian's kernels, decides by path."""
_APPARMOR = Path("/sys/module/apparmor/parameters/enabled")
_SELINUX = Path("/sys/fs/selinux/enforce")

_DEFAULT_UMASK = 0o022


class Unsuited(Unfit):
    """The exec program cannot create the process as runc would, so Docker must run the exec."""


class _User(msgspec.Struct, rename="camel"):
    uid: int = 0
    gid: int = 0
    additional_gids: list[int] | None = None
    umask: int | None = None


class _Limit(msgspec.Struct):
    type: str
    soft: int
    hard: int


class _Process(msgspec.Struct, rename="camel"):
    user: _User
    cwd: str
    env: list[str] | None = None
    terminal: bool = False
    capabilities: dict[str, list[str] | None] | None = None
    no_new_privileges: bool = False
    rlimits: list[_Limit] | None = None
    oom_score_adj: int | None = None
    apparmor_profile: str = ""
    selinux_label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container. The data is valid as long as its first process lives."""

    id: str
    pid: int
    """Pid of the first process."""
    began: int
    """Start time of the first process, in clock ticks of the kernel."""
    cgroup_paths: Mapping[str, str]
    """Directories by controller, from runc; the key is empty for cgroup v2."""
    process: _Process
    seccomp: bytes
    """The profile as JSON; empty for none."""
    user_namespace_base: tuple[int, int] | None
    """Uid and gid on the host of root in the container's user namespace; None in the host's user namespace."""
    limits: Mapping[int, tuple[int, int]]
    niceness: int
    processors: frozenset[int]
    io_priority: int
    shim_capabilities: int
    """The bounding set of containerd-shim."""
    runc: Path
    """The program that created the container."""

    def is_alive(self) -> bool:
        """Return whether the first process still lives. A reused pid counts as dead."""
        try:
            return began(self.pid) == self.began
        except (OSError, ValueError, IndexError):
            return False

    @property
    def has_terminal(self) -> bool:
        """Whether the first process has a terminal."""
        return self.process.terminal

    @property
    def umask(self) -> int:
        """The umask of the container's processes."""
        umask = self.process.user.umask
        return _DEFAULT_UMASK if umask is None else umask

    def capabilities(self, which: str) -> int:
        """Return the capability set `which`, such as `bounding`, as a mask of capability numbers."""
        names = (self.process.capabilities or {}).get(which) or ()
        return sum({_CAPABILITY.get(name, 0) for name in names})

    @property
    def control_groups(self) -> list[str]:
        """The `cgroup.procs` files of the container's control groups."""
        return [f"{directory}/cgroup.procs" for directory in self.cgroup_paths.values()]

    def is_frozen(self) -> bool:
        """Return whether the control group is frozen. A process that joins it would stop."""
        return is_frozen(self.cgroup_paths)


def has_apparmor() -> bool:
    """Return whether AppArmor can confine containers on this node."""
    return word(_APPARMOR) == b"Y"


def namespaces_of(pid: int, *, has_user_namespace: bool) -> list[tuple[str, int]]:
    """Return path and kind of the namespaces of process `pid` that an exec enters, in order.

    `has_user_namespace` says whether the container was created with a user namespace. Raise Unsuited if the process has
    created its own user namespace since, which Docker's exec would not enter.
    """
    entered = []
    for name, kind in _NAMESPACES.items():
        path = f"/proc/{pid}/ns/{name}"
        if name == USER_NAMESPACE:
            if _is_own(name, pid) is has_user_namespace:
                raise Unsuited("namespace", "the first process has left its user namespace")
            if not has_user_namespace:
                continue  # the kernel refuses to enter the current user namespace
        entered.append((path, kind))
    return entered


def read_container(container_id: str, *, exec_root: Path, pid: int) -> Container:
    """Read the attributes of a running container whose first process is `pid`. Raise Unsuited."""
    try:
        state = read_state(container_id, exec_root=exec_root, pid=pid)
        bundle = bundle_of(state)
        config = msgspec.json.decode(read_file(bundle / "config.json"))
        _check_known(config)
        process = msgspec.convert(config["process"], _Process)
        linux = config["linux"]
        seccomp = linux.get("seccomp")
        has_user_namespace = any(each["type"] == USER_NAMESPACE for each in linux["namespaces"])
        _check_security_modules(process)
        shim = shim_of(pid)
        return Container(
            id=container_id,
            pid=pid,
            began=state.init_process_start,
            cgroup_paths=state.cgroup_paths,
            process=process,
            seccomp=msgspec.json.encode(seccomp) if seccomp else b"",
            user_namespace_base=_user_namespace_base(pid) if has_user_namespace else None,
            limits=_limits(process, shim=shim),
            niceness=os.getpriority(os.PRIO_PROCESS, shim),
            processors=frozenset(os.sched_getaffinity(shim)),
            io_priority=kernel.io_priority(shim),
            shim_capabilities=_check_unconfined(status(shim), what="containerd-shim"),
            runc=runc_of(bundle, shim=shim),
        )
    except Unsuited:
        raise
    except Unfit as unfit:
        raise Unsuited(unfit.reason, str(unfit)) from unfit
    except OSError as error:
        raise Unsuited("state", f"read the files of runc: {reason_of(error)}") from error
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, IndexError) as error:
        raise Unsuited("state", f"decode the files of runc: {error}") from error


def check_same_rights(container: Container, *, program: bytes) -> None:
    """Raise Unsuited if the exec program has fewer rights than containerd-shim, from which Docker's execs inherit.

    `program` is the content of the program's /proc/<pid>/status.
    """
    has = _check_unconfined(program, what="the exec program")
    if container.shim_capabilities & ~has:
        raise Unsuited("confined", "the exec program lacks capabilities that containers may have")


def _check_known(config: Mapping[str, Any]) -> None:
    process, linux = config["process"], config["linux"]
    unknown = {name for name, value in process.items() if value} - _KNOWN_PROCESS
    unknown |= {name for name, value in process["user"].items() if value} - _KNOWN_USER
    unknown |= {name for name, value in linux.items() if value} - _KNOWN_LINUX
    unknown |= {f"namespace {each['type']}" for each in linux["namespaces"] if each["type"] == "time"}
    if unknown:
        raise Unsuited("field", f"config.json has {', '.join(sorted(unknown))}")


def _check_security_modules(process: _Process) -> None:
    if process.selinux_label and _SELINUX.exists():
        raise Unsuited("security module", "SELinux confines the container")
    others = set(word(_SECURITY_MODULES).decode().split(",")) - _WITHOUT_LABELS - {"", "apparmor", "selinux"}
    if others:
        raise Unsuited("security module", f"the kernel has {', '.join(sorted(others))}")


def _check_unconfined(status: bytes, *, what: str) -> int:
    """Return the bounding set of a process. Raise Unsuited if its children would inherit restrictions."""
    if value_of(status, b"NoNewPrivs") != b"0" or value_of(status, b"Seccomp") != b"0":
        raise Unsuited("confined", f"{what} has a seccomp filter or may not gain privileges")
    return int(value_of(status, b"CapBnd"), 16)


def _limits(process: _Process, *, shim: int) -> dict[int, tuple[int, int]]:
    limits = {number: resource.prlimit(shim, number) for number in range(16)}
    for limit in process.rlimits or ():
        number = getattr(resource, limit.type, None)
        if not isinstance(number, int):
            raise Unsuited("field", f"config.json has limit {limit.type}")
        limits[number] = (_signed(limit.soft), _signed(limit.hard))
    return limits


def _signed(value: int) -> int:
    """Return a limit in Python's form: -1 for unlimited."""
    return resource.RLIM_INFINITY if value == (1 << 64) - 1 else value


def _user_namespace_base(pid: int) -> tuple[int, int]:
    """Return uid and gid on the host of root in the user namespace of a process."""
    return _host_root(Path(f"/proc/{pid}/uid_map")), _host_root(Path(f"/proc/{pid}/gid_map"))


def _host_root(mapping: Path) -> int:
    for line in lines(mapping.read_bytes()):
        inside, host, _ = map(int, line.split())
        if inside == 0:
            return host
    raise Unsuited("namespace", "the container's user namespace has no root")


def _is_own(namespace: str, pid: int) -> bool:
    return os.stat(f"/proc/{pid}/ns/{namespace}").st_ino == os.stat(f"/proc/self/ns/{namespace}").st_ino  # noqa: PTH116
