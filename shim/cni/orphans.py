"""Plugins that a server has left running when it crashed.

What such an ADD still does comes after the DEL that is to undo it, and nothing would ever undo it again. A crash ends
the server alone, also where systemd runs it: what a plugin has left running on purpose has to go on.
"""

import os
import select
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import structlog

END_SECONDS = 5.0
"""For all that was killed to be gone. Processes inside an uninterruptible system call are not waited for longer."""

log = structlog.get_logger(__name__)


def end_orphans(container_ids: Collection[str], *, proc: Path = Path("/proc")) -> None:
    """Kill every plugin, and what it has started, that works for one of these sandboxes.

    Waits until they are gone, 5 s at most for all of them together. They are known by the environment that plugins are
    given and that their children inherit. To be called before any plugin is run, since nothing tells ours from others.
    """
    give_up = time.monotonic() + END_SECONDS
    gone = True
    while gone:  # again: one may have started a child while it was being killed
        with ExitStack() as opened:
            handles = [handle for pid in _pids(container_ids, proc) if (handle := _killed(pid, container_ids, proc))]
            for handle in handles:
                opened.callback(os.close, handle)
            if not handles:
                return
            gone = _wait_gone(handles, give_up=give_up)
    log.error("cni plugins of an earlier server do not end although they were killed")


def _pids(container_ids: Collection[str], proc: Path) -> Iterator[int]:
    for entry in proc.iterdir():
        if entry.name.isdecimal() and _works_for(entry, container_ids):
            yield int(entry.name)


def _works_for(process: Path, container_ids: Collection[str]) -> str:
    """Give the sandbox a plugin works for, empty for all other processes."""
    try:
        environment = (process / "environ").read_bytes()
    except OSError:  # it has ended, or is the kernel's
        return ""
    pairs = (pair.decode(errors="replace").partition("=") for pair in environment.split(b"\0") if pair[:4] == b"CNI_")
    given = {name: value for name, _, value in pairs}
    sandbox = given.get("CNI_CONTAINERID", "")
    return sandbox if "CNI_COMMAND" in given and sandbox in container_ids else ""


def _killed(pid: int, container_ids: Collection[str], proc: Path) -> int | None:
    """Kill a process and give a pidfd of it; None when there is nothing to kill any more."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        # Its number may have become another's before the handle was there.
        if sandbox := _works_for(proc / str(pid), container_ids):
            log.warning("ending a cni plugin that an earlier server left running", pid=pid, sandbox=sandbox)
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            return handle
        os.close(handle)
    return None


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
