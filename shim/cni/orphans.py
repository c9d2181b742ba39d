"""Plugins that a server has left running when it crashed.

What such an ADD still does comes after the DEL that is to undo it, and nothing would ever undo it again. A crash ends
the server alone, also where systemd runs it: what a plugin has left running on purpose has to go on.

They are known by the environment that plugins are given and that their children inherit. The kernel reads it from the
memory of the process, under a lock that a process which hangs on a dead volume may hold for ever. So it is read in the
helper process (`shim.hostfs`), and only if there is a sandbox that was left half-way.
"""

import os
import select
import signal
import time
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from shim.cni.environment import sandbox_of_plugin
from shim.concurrency.gather import gather
from shim.errors import DeadlineExceeded, ShimError, Unavailable
from shim.hostfs.client import HostFs

END_SECONDS = 5.0
"""For all that was killed to be gone. Processes inside an uninterruptible system call are not waited for longer."""

READ_SECONDS = 1.0
"""For the environment of one process."""

_WIDTH = 64
"""Environments that are read at the same time: so many processes may hang without making the others wait."""

log = structlog.get_logger(__name__)


def end_orphans(container_ids: Collection[str], *, host_fs: HostFs, proc: Path = Path("/proc")) -> None:
    """Kill every plugin, and what it has started, that works for one of these sandboxes.

    Waits until they are gone, 5 s at most for all of them together. To be called before any plugin is run, since
    nothing tells ours from others. With no sandbox no process is inspected.
    """
    if not container_ids:
        return
    processes = _Processes(frozenset(container_ids), host_fs, proc)
    give_up = time.monotonic() + END_SECONDS
    gone = True
    while gone:  # again: one may have started a child while it was being killed
        with ExitStack() as opened:
            handles = [handle for pid in processes.plugins() if (handle := processes.kill(pid)) is not None]
            for handle in handles:
                opened.callback(os.close, handle)
            if not handles:
                return
            gone = _wait_gone(handles, give_up=give_up)
    log.error("cni plugins of an earlier server do not end although they were killed")


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
            found = gather([partial(self._sandbox_of, pid) for pid in pids], width=_WIDTH)
        except (Unavailable, DeadlineExceeded) as error:  # not Docker, which others wait for
            raise ShimError(f"find cni plugins of an earlier server: {error}") from error
        return [pid for pid, sandbox in zip(pids, found, strict=True) if sandbox]

    def kill(self, pid: int) -> int | None:
        """Kill a plugin and return a pidfd of it; None when it has ended."""
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            # Its number may have become another's before the handle was there.
            if sandbox := self._sandbox_of(pid):
                log.warning("ending a cni plugin that an earlier server left running", pid=pid, sandbox=sandbox)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                return handle
            os.close(handle)
        return None

    def _wait_reads_possible(self) -> None:
        """Wait for the helper process: on a busy node its start alone takes longer than READ_SECONDS."""
        self.host_fs.call(os.getpid, path="/proc", what="find cni plugins")

    def _sandbox_of(self, pid: int) -> str:
        process = self.proc / str(pid)
        find = partial(sandbox_of_plugin, process, self.container_ids)
        try:
            return self.host_fs.call(find, path=str(process), what="find cni plugins", seconds=READ_SECONDS)
        except DeadlineExceeded as error:
            log.warning("a process is not checked for being a cni plugin", pid=pid, error=error)
            return ""


def _wait_gone(handles: list[int], *, give_up: float) -> bool:
    """Whether all have ended by then, a time of the monotonic clock."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    left = len(handles)
    while left and (seconds := give_up - time.monotonic()) > 0:
        for handle, _ in poll.poll(seconds * 1000):
            poll.unregister(handle)
            left -= 1
    return not left
