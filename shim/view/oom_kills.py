"""Adds OOM kills that Docker has missed to inspects, from the kernel's log."""

from typing import Protocol

import msgspec

from shim.base.times import ns_from_rfc3339
from shim.engine.answers import ContainerInspect
from shim.view.records import Record
from shim.view.translate import EXIT_SIGKILL


class KernelKills(Protocol):
    """The OOM kills in the kernel's log."""

    def include(self, container_id: str, *, pid: int, started_at: int) -> bool:
        """Return whether an exited container had an OOM kill, as `shim.cgroup.kernel_log.OomKills` does."""
        ...


class NoKills:
    """No OOM kills, for a server that does not read the kernel's log."""

    def include(self, container_id: str, *, pid: int, started_at: int) -> bool:  # noqa: ARG002 - as the interface
        """Return False."""
        return False


def with_oom_kill(inspect: ContainerInspect, *, previous: Record | None, kills: KernelKills) -> ContainerInspect:
    """Return the inspect, with Docker's flag `OOMKilled` set if the kernel's log reports an OOM kill.

    `previous` is the earlier record of the container. As with Docker's own flag, the kernel may have killed any process
    of the container. So the flag is set only if the container ended by SIGKILL.
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
