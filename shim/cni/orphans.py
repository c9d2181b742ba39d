"""Plugins that an earlier server left running when it crashed.

An orphaned ADD may act after the DEL that is meant to undo it, and nothing would undo its work later. systemd does not
kill orphans with the server, because plugins may leave processes running on purpose.

Orphans are recognised by the environment of plugins, which their children inherit. The kernel reads it from the memory
of the process, under a lock that a process hanging on a dead volume may hold for ever. So the server reads it in the
helper process (`shim.hostfs`), and only if a sandbox is half-made or half-removed.
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
"""Limit of the wait for killed processes to end, which fails only in an uninterruptible system call."""

READ_SECONDS = 1.0
"""Limit for reading the environment of a process."""

BATCH_SECONDS = 0.25
"""Limit for reading the environments of a batch, which takes 2 ms. After that, each process is read separately."""

BATCH = 64
"""Processes whose environments are read in a call of the helper process. A node may have 5,000 processes, and as many
calls would take seconds."""

_WIDTH = 64
"""Environments that are read separately at a time. As many processes may hang without delaying the others."""

_BATCHES = 16
"""Batches that are read at a time. As many may contain a hung process without delaying the others."""

log = structlog.get_logger(__name__)


def end_orphans(container_ids: Collection[str], *, host_fs: HostFs, proc: Path = Path("/proc")) -> None:
    """Kill the plugins that work for one of these sandboxes, with their children.

    Wait until they have ended, for at most END_SECONDS and within the current scope. Call this before the server runs
    any plugin, because it could not tell its own plugins from orphans. Without sandboxes no process is inspected.
    """
    if not container_ids:
        return
    processes = _Processes(frozenset(container_ids), host_fs, proc)
    give_up = time.monotonic() + END_SECONDS
    gone = True
    while gone:  # repeat: a process may have started a child while it was being killed
        with ExitStack() as opened:
            found = (processes.kill(pid) for pid in processes.plugins())
            killed = [opened.enter_context(process) for process in found if process is not None]
            if not killed:
                return
            gone = wait_all_ended(killed, what="wait for the end of cni plugins", limit=give_up - time.monotonic())
    log.error("killed CNI plugins of an earlier server are still running")


@dataclass(frozen=True, slots=True)
class _Processes:
    """Finds the processes of this machine that work for these sandboxes."""

    container_ids: frozenset[str]
    host_fs: HostFs
    proc: Path

    def plugins(self) -> list[int]:
        """Return the pids of plugins and their children."""
        pids = [int(entry.name) for entry in self.proc.iterdir() if entry.name.isdecimal()]
        try:
            self._wait_reads_possible()
            return self._plugins_among(pids)
        except (Unavailable, DeadlineExceeded) as error:  # callers would take these errors for Docker's
            raise ShimError(f"find cni plugins of an earlier server: {error}") from error

    def _plugins_among(self, pids: Sequence[int]) -> list[int]:
        """Read environments in batches. Read the processes of a batch that takes too long separately."""
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
        """Kill a plugin and return its handle; None if it has ended."""
        with ExitStack() as opened, suppress(ProcessLookupError):
            process = opened.enter_context(ProcessHandle(pid))
            # Another process may have got the pid before the handle was opened.
            if sandbox := self._sandbox_of(pid):
                log.warning("killing CNI plugin left by an earlier server", pid=pid, sandbox=sandbox)
                process.kill()
                opened.pop_all()  # the caller closes it
                return process
        return None

    def _wait_reads_possible(self) -> None:
        """Wait for the helper process, whose start alone takes longer than READ_SECONDS on a busy node."""
        self.host_fs.call(sandboxes_of_plugins, [], self.container_ids, path="/proc", what="find cni plugins")

    def _sandboxes_of(self, pids: Sequence[int]) -> list[str] | None:
        """Return the sandbox of each process, empty for none; None if the batch cannot be read in time."""
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
