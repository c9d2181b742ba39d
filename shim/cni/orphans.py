"""Plugins that a server has left running when it crashed.

What such an ADD still does comes after the DEL that is to undo it, and nothing would ever undo it again. A crash ends
the server alone, also where systemd runs it: what a plugin has left running on purpose has to go on.

They are known by the environment that plugins are given and that their children inherit. The kernel reads it from the
memory of the process, under a lock that a process which hangs on a dead volume may hold for ever. So it is read in the
helper process (`shim.hostfs`), and only if there is a sandbox that was left half-way.
"""

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from shim.base import deadline
from shim.base.gather import gather
from shim.base.process import ProcessHandle, wait_all_ended
from shim.cni.environment import sandbox_of_plugin, sandboxes_of_plugins
from shim.domain.errors import DeadlineExceeded, ResourceExhausted, ShimError, Unavailable
from shim.hostfs.client import HostFs

END_SECONDS = 5.0
"""For all that was killed to be gone. Processes inside an uninterruptible system call are not waited for longer."""

READ_SECONDS = 1.0
"""For the environment of one process."""

BATCH_SECONDS = 0.25
"""For the environments of one batch, which take 2 ms. Processes of a batch that takes longer are read one by one."""

BATCH = 64
"""Processes whose environments are read in one call of the helper process. A node may have 5,000 processes, and a call
for each of them takes seconds."""

_WIDTH = 64
"""Environments that are read one by one at the same time: so many processes may hang without making the others wait."""

_BATCHES = 16
"""Batches that are read at the same time: so many may hold a process that hangs without making the others wait."""

log = structlog.get_logger(__name__)


def end_orphans(container_ids: Collection[str], *, host_fs: HostFs, proc: Path = Path("/proc")) -> None:
    """Kill every plugin, and what it has started, that works for one of these sandboxes.

    Wait until they are gone, 5 s at most for all of them together, and no longer than the current scope lasts. To be
    called before any plugin is run, since the plugins of this server are the same. With no sandbox no process is
    inspected.
    """
    if not container_ids:
        return
    processes = _Processes(frozenset(container_ids), host_fs, proc)
    give_up = time.monotonic() + END_SECONDS
    gone = True
    while gone:  # again: one may have started a child while it was being killed
        with ExitStack() as opened:
            found = (processes.kill(pid) for pid in processes.plugins())
            killed = [opened.enter_context(process) for process in found if process is not None]
            if not killed:
                return
            gone = wait_all_ended(killed, what="wait for the end of cni plugins", limit=give_up - time.monotonic())
    log.error("killed CNI plugins of an earlier server are still running")


@dataclass(frozen=True, slots=True)
class _Processes:
    """The processes of this machine, and which of them work for these sandboxes."""

    container_ids: frozenset[str]
    host_fs: HostFs
    proc: Path

    def plugins(self) -> list[int]:
        """Return the pids of plugins, and of what they have started."""
        pids = [int(entry.name) for entry in self.proc.iterdir() if entry.name.isdecimal()]
        try:
            self._wait_reads_possible()
            return self._plugins_among(pids)
        except (Unavailable, DeadlineExceeded) as error:  # not Docker, which others wait for
            raise ShimError(f"find cni plugins of an earlier server: {error}") from error

    def _plugins_among(self, pids: Sequence[int]) -> list[int]:
        """Read in batches, and one by one what is in a batch that does not answer in time."""
        batches = [pids[start : start + BATCH] for start in range(0, len(pids), BATCH)]
        answers = gather([partial(self._sandboxes_of, batch) for batch in batches], width=_BATCHES)
        found = {
            pid: sandbox
            for batch, sandboxes in zip(batches, answers, strict=True)
            if sandboxes is not None
            for pid, sandbox in zip(batch, sandboxes, strict=True)
        }
        rest = [pid for pid in pids if pid not in found]
        found.update(zip(rest, gather([partial(self._sandbox_of, pid) for pid in rest], width=_WIDTH), strict=True))
        return [pid for pid in pids if found[pid]]

    def kill(self, pid: int) -> ProcessHandle | None:
        """Kill a plugin and return its handle; None when it has ended."""
        with ExitStack() as opened, suppress(ProcessLookupError):
            process = opened.enter_context(ProcessHandle(pid))
            # Its number may have become another's before the handle was there.
            if sandbox := self._sandbox_of(pid):
                log.warning("killing CNI plugin left by an earlier server", pid=pid, sandbox=sandbox)
                process.kill()
                opened.pop_all()  # the caller closes it
                return process
        return None

    def _wait_reads_possible(self) -> None:
        """Wait for the helper process: on a busy node its start alone takes longer than READ_SECONDS."""
        self.host_fs.call(sandboxes_of_plugins, [], self.container_ids, path="/proc", what="find cni plugins")

    def _sandboxes_of(self, pids: Sequence[int]) -> list[str] | None:
        """Return the sandbox of each process, empty for none; None if they cannot be read together."""
        find = partial(sandboxes_of_plugins, [self.proc / str(pid) for pid in pids], self.container_ids)
        path = f"environments of processes {pids[0]} to {pids[-1]}"
        try:
            return self.host_fs.call(find, path=path, what="find cni plugins", seconds=BATCH_SECONDS)
        except (DeadlineExceeded, ResourceExhausted):
            deadline.current().check("find cni plugins")
            return None

    def _sandbox_of(self, pid: int) -> str:
        process = self.proc / str(pid)
        find = partial(sandbox_of_plugin, process, self.container_ids)
        try:
            return self.host_fs.call(find, path=str(process), what="find cni plugins", seconds=READ_SECONDS)
        except (DeadlineExceeded, ResourceExhausted) as error:
            deadline.current().check("find cni plugins")
            log.warning("cannot check whether process is a CNI plugin", pid=pid, error=error)
            return ""
