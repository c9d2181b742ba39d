"""Whether the first process of a container still exists, whatever Docker reports.

Docker learns of an exit from containerd, and containerd from the container's shim; an event that is lost on that way
(a shim that hangs or was killed, a containerd that was restarted at the wrong moment) leaves a container "running" for
ever. Docker's pids are valid in this process too: without a shared pid namespace no pod network could be set up either.
"""

import os
import time
from pathlib import Path

from shim.base.times import SECOND
from shim.view.records import Record

SLACK_NS = 10_000_000_000
"""How much later than Docker's `StartedAt` a container's process may seem to have begun: clocks are set."""

_NS_PER_TICK = SECOND // os.sysconf("SC_CLK_TCK")


def process_ended(record: Record, *, proc: Path = Path("/proc")) -> bool:
    """Whether the process of a running container has ended, or its pid is that of another process.

    A zombie has ended; a process of which only the main thread has ended has not. A pid counts as that of another
    process only if both its start time and its cgroup differ: a runtime with a sandbox of its own may put its process
    into another cgroup, and clocks are set. False if that cannot be determined.
    """
    state = record.state
    if not state.running or not state.pid:
        return False
    try:
        # proc(5): fields count from behind the name, which may hold blanks, parentheses and line ends.
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
    """Whether a process whose main thread has ended has ended as a whole, by its `stat` from the state on.

    The state there is that of the main thread, which may end long before the others (pthread_exit). The number of
    threads counts it until it is collected: 1 in a process that has ended, 0 while that is being collected. What else
    there is to know of a process, such as its cgroup on version 1, goes with the main thread.
    """
    return int(fields[17]) <= 1


def is_process_of(record: Record, *, proc: Path = Path("/proc")) -> bool:
    """Whether the pid that is known of a container certainly is of this container now: by its cgroup."""
    return record.state.pid > 0 and is_in_container(record.state.pid, record.id, proc=proc)


def is_in_container(pid: int, container_id: str, *, proc: Path = Path("/proc")) -> bool:
    """Whether a process certainly is one of this container now: by its cgroup."""
    try:
        return _in_cgroup_of(container_id, proc / str(pid))
    except OSError:
        return False


def boot_time() -> int:
    """When the kernel began, by the clock as it is set now, ns since the epoch.

    Not from /proc/stat, which is pages long on a machine with many cores, and is asked for with each container.
    """
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _in_cgroup_of(container_id: str, process: Path) -> bool:
    """Both of Docker's cgroup drivers name a container's cgroup by its full id."""
    return container_id.encode() in (process / "cgroup").read_bytes()
