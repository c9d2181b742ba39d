"""Checks whether the first process of a container still exists, whatever Docker reports.

containerd-shim reports an exit to containerd, which reports it to Docker. The event is lost if containerd-shim hangs or
is killed, or if containerd restarts at the wrong moment. The container then stays "running" forever. Docker's pids are
valid in this process, because the server shares dockerd's pid namespace, which pod networks require.
"""

import os
import time
from pathlib import Path

from shim.base.times import SECOND
from shim.view.records import Record

SLACK_NS = 10_000_000_000
"""Tolerance between Docker's `StartedAt` and the process's start time, because the clock may have been set."""

_NS_PER_TICK = SECOND // os.sysconf("SC_CLK_TCK")


def process_ended(record: Record, *, proc: Path = Path("/proc")) -> bool:
    """Return whether the process of a running container has exited, or its pid was reused; False if undetermined.

    A zombie counts as exited; a process whose main thread alone has exited does not. A pid counts as reused only if its
    start time and its cgroup both differ. Either alone may mislead: the clock may have been set, and sandboxed runtimes
    may use another cgroup.
    """
    state = record.state
    if not state.running or not state.pid:
        return False
    try:
        # The name, in parentheses, may itself contain blanks, parentheses and newlines (proc(5)).
        fields = (proc / str(state.pid) / "stat").read_bytes().rpartition(b")")[2].split()
        if fields[0] in {b"Z", b"X"}:
            return _has_no_other_thread(fields)
        began_at = boot_time() + int(fields[19]) * _NS_PER_TICK
        return began_at > state.started_at + SLACK_NS and not _in_cgroup_of(record.id, proc / str(state.pid))
    except (FileNotFoundError, ProcessLookupError):
        return True
    except (OSError, IndexError, ValueError):
        return False


def _has_no_other_thread(fields: list[bytes]) -> bool:
    """Return whether a zombie has no other thread; `fields` are the fields of its `stat` from the state on.

    `stat` shows the state of the main thread, which may exit long before other threads (pthread_exit). The number of
    threads includes an exited main thread: it is 1 in an exited process, and 0 while the process is being reaped. Other
    data, such as the cgroup on version 1, disappears with the main thread.
    """
    return int(fields[17]) <= 1


def is_process_of(record: Record, *, proc: Path = Path("/proc")) -> bool:
    """Return whether the last known pid of a container certainly belongs to it now, by its cgroup."""
    return record.state.pid > 0 and is_in_container(record.state.pid, record.id, proc=proc)


def is_in_container(pid: int, container_id: str, *, proc: Path = Path("/proc")) -> bool:
    """Return whether a process certainly belongs to this container now, by its cgroup."""
    try:
        return _in_cgroup_of(container_id, proc / str(pid))
    except OSError:
        return False


def boot_time() -> int:
    """Return when the machine booted by the current wall clock, ns since the epoch.

    This runs for each container, so it avoids /proc/stat, which is pages long on a machine with many cores.
    """
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _in_cgroup_of(container_id: str, process: Path) -> bool:
    """Both of Docker's cgroup drivers name a container's cgroup by its full id."""
    return container_id.encode() in (process / "cgroup").read_bytes()
