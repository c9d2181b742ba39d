"""The plan of a command, which the server sends to the program together with descriptors."""

import marshal
from typing import NamedTuple


class Plan(NamedTuple):
    """The attributes that runc would give to the process. Ids are those of the host unless stated."""

    arguments: list[bytes]
    environment: list[tuple[bytes, bytes]]
    """Names and values, in order."""
    directory: bytes
    """The working directory, as seen in the container."""
    uid: int
    gid: int
    """Inside the container's user namespace; `groups` too."""
    groups: list[int]
    bounding: int
    effective: int
    permitted: int
    inheritable: int
    ambient: int
    """Sets of capabilities: masks of their numbers, capabilities(7)."""
    no_new_privileges: bool
    filter: bytes
    """The seccomp filter as BPF; empty for none."""
    filter_flags: int
    limits: dict[int, tuple[int, int]]
    """Soft and hard limit by number, getrlimit(2)."""
    oom_score_adjustment: int | None
    """None to keep the present one."""
    umask: int
    niceness: int
    processors: list[int]
    io_priority: int
    apparmor: bytes
    """Name of the AppArmor profile; empty for none."""
    keyring: bytes
    """Name of the session keyring; empty to keep the present one."""
    pipe_owner: tuple[int, int]
    """uid and gid; -1 for no change."""
    terminal: tuple[int, int] | None
    """Width and height of the terminal in characters, (0, 0) where they are not known; None for no terminal."""
    namespaces: list[int]
    """Kinds of the namespaces to enter, in order: flags of clone(2). Their descriptors come behind the streams', and
    those of `cgroup.procs` of each control group behind them."""


def packed(plan: Plan) -> bytes:
    """Return the plan for the program, which is of the same Python."""
    return marshal.dumps(plan._asdict())
