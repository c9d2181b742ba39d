"""The plan of a command. The server sends it to the exec program together with descriptors."""

import marshal
from typing import NamedTuple


class Plan(NamedTuple):
    """The attributes that runc would give to the process. Ids are ids on the host unless stated otherwise."""

    arguments: list[bytes]
    environment: list[tuple[bytes, bytes]]
    """Names and values, in order."""
    directory: bytes
    """The working directory inside the container."""
    uid: int
    gid: int
    """uid, gid and groups are ids inside the container's user namespace."""
    groups: list[int]
    bounding: int
    effective: int
    permitted: int
    inheritable: int
    ambient: int
    """The capability sets, each a mask of capability numbers; see capabilities(7)."""
    no_new_privileges: bool
    filter: bytes
    """The seccomp filter as BPF; empty for none."""
    filter_flags: int
    limits: dict[int, tuple[int, int]]
    """Soft and hard limit by number; see getrlimit(2)."""
    oom_score_adjustment: int | None
    """None to keep the current value."""
    umask: int
    niceness: int
    processors: list[int]
    io_priority: int
    apparmor: bytes
    """Name of the AppArmor profile; empty for none."""
    keyring: bytes
    """Name of the session keyring; empty to keep the current keyring."""
    pipe_owner: tuple[int, int]
    """uid and gid; -1 for no change."""
    terminal: tuple[int, int] | None
    """Width and height of the terminal in characters, (0, 0) if unknown; None for no terminal."""
    namespaces: list[int]
    """Kinds of the namespaces to enter, in order, as flags of clone(2). Their descriptors follow the descriptors of the
    streams. The descriptors of the control groups' `cgroup.procs` come last."""


def packed(plan: Plan) -> bytes:
    """Return the plan as bytes for the exec program, which runs the same Python."""
    return marshal.dumps(plan._asdict())
