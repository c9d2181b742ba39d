"""Memory kills that Docker has missed, by the kernel's word."""

from typing import Protocol

import msgspec

from shim.base.times import ns_from_rfc3339
from shim.engine.answers import ContainerInspect
from shim.view.records import Record
from shim.view.translate import EXIT_SIGKILL


class KernelKills(Protocol):
    """What the kernel says of kills for lack of memory."""

    def include(self, container_id: str, *, pid: int, started_at: int) -> bool:
        """Whether a process of a container that has ended was killed, as `shim.cgroup.kernel_log.OomKills`."""
        ...


class NoKills:
    """The kernel's word where its log is not read: none."""

    def include(self, container_id: str, *, pid: int, started_at: int) -> bool:  # noqa: ARG002 - as the interface
        """Return False."""
        return False


def with_memory_kill(inspect: ContainerInspect, *, previous: Record | None, kills: KernelKills) -> ContainerInspect:
    """Return the inspect with Docker's flag for a memory kill set if the kernel has killed for lack of memory.

    `previous` is the record of the container before. As with Docker's own flag, the process that was killed may be any
    of the container's. The flag counts with the exit code of SIGKILL alone.
    """
    state = inspect.state
    if state.running or state.oom_killed or state.exit_code != EXIT_SIGKILL:
        return inspect
    started_at = ns_from_rfc3339(state.started_at)
    known = previous is not None and previous.state.started_at == started_at
    pid = previous.state.pid if previous is not None and known else 0
    if not kills.include(inspect.id, pid=pid, started_at=started_at):
        return inspect
    return msgspec.structs.replace(inspect, state=msgspec.structs.replace(state, oom_killed=True))
