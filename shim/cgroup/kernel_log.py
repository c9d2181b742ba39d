"""Finds OOM kills of containers in the kernel's log.

Docker learns of an OOM kill from the counters of a control group, which may be gone before Docker reads them. The
kernel's log names the group and the process before the process exits, with both versions of control groups. Linux 5.0
and later (mm/oom_kill.c, mm/memcontrol.c) logs a kill in three lines:

    oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/kubepods/pod1/<id>,task=sh,pid=123,uid=0
    Tasks in /kubepods/pod1/<id> are going to be killed due to memory.oom.group set
    Memory cgroup out of memory: Killed process 123 (sh) total-vm:...

The first line is limited to ten in five seconds on the whole machine; the last is logged for each kill. So kills are
recorded both by container id and by pid.
"""

import os
import re
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from shim.base.lru_cache import LruCache
from shim.base.times import SECOND
from shim.base.wakeup import Waker

KERNEL_LOG = Path("/dev/kmsg")

RECORD_SIZE = 8192
"""Bytes of a read; no kernel returns a longer record."""
MAX_CONTAINERS = 4096
"""Killed containers that are remembered, latest first: several times the containers of a full node."""
MAX_PROCESSES = 4096
"""Killed processes that are remembered, latest first. Callers ask about processes that have just exited."""

_FROM_KERNEL = re.compile(rb"[0-7],")
"""Level and facility of a record in one number, with the kernel's facility 0. The kernel gives records that programs
write another facility."""
_GROUP_ABOVE, _GROUP_BELOW = b"Tasks in ", b" are going to be killed due to memory.oom.group set"
_SUMMARY, _SUMMARY_GROUP, _SUMMARY_TASK = b"oom-kill:constraint=", b",task_memcg=", b",task="
_PROCESS = re.compile(rb"(?:Memory cgroup o|O)ut of memory(?: \([a-z_]+\))?: Killed process ([1-9]\d{0,9}) ")
_ID = re.compile(rb"/(?:[^/]*-)?([0-9a-f]{64})(?:\.scope)?(?=/|$)")
"""A container's full id in the path of a control group. Docker's drivers name a group `<id>` or `docker-<id>.scope`."""

_SLACK_NS = 10 * SECOND
"""How long after the exit of a process its container's `StartedAt` may lie: Docker notes the time after the start."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the machine's initial pid namespace (PROC_PID_INIT_INO). The kernel logs the pids of this namespace."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Kill:
    """An OOM kill, as a record of the kernel's log describes it."""

    containers: tuple[str, ...] = ()
    """Ids in the path of the group: the container, and with nested containers (kind) also the outer containers."""
    pid: int = 0
    """The killed process; 0 if the record names a group."""


def kill_of(record: bytes) -> Kill | None:
    """Return the OOM kill that a record of /dev/kmsg reports; None for any other record.

    Only the beginning of a text identifies it: programs choose the names and paths that follow.
    """
    # Continuation lines, which begin with a blank, hold keys and values.
    head, _, text = record.partition(b"\n")[0].partition(b";")
    if not _FROM_KERNEL.match(head):
        return None
    if text.startswith(_SUMMARY):
        # The first match of each: names that the container chooses (of subgroups, of processes) come after its id.
        return _of_group(text.partition(_SUMMARY_GROUP)[2].partition(_SUMMARY_TASK)[0])
    if text.startswith(_GROUP_ABOVE) and text.endswith(_GROUP_BELOW):
        return _of_group(text[len(_GROUP_ABOVE) : -len(_GROUP_BELOW)])
    process = _PROCESS.match(text)
    return Kill(pid=int(process[1])) if process else None


def _of_group(path: bytes) -> Kill | None:
    found = tuple(found.decode() for found in _ID.findall(path))
    return Kill(containers=found) if found else None


def pids_are_the_kernels() -> bool:
    """Return whether this process is in the initial pid namespace, so that the pids in the log are valid here."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


class OomKills:
    """The OOM kills since the machine booted, as far as the kernel's log still has them. Thread-safe.

    A thread reads new records before the kernel overwrites them. Without a readable log no kill is known.
    """

    def __init__(
        self,
        device: Path = KERNEL_LOG,
        *,
        read: Callable[[int, int], bytes] = os.read,
        has_pids: Callable[[], bool] = pids_are_the_kernels,
    ) -> None:
        """`read` reads one record; `has_pids` returns whether pids in the log are valid in this process."""
        self._device = device
        self._read = read
        self._has_pids = has_pids
        self._lock = threading.Lock()
        """Held while records are read."""
        self._fd = -1
        self._readable = False
        self._containers: LruCache[str, bool] = LruCache(capacity=MAX_CONTAINERS)
        self._processes: LruCache[int, int] = LruCache(capacity=MAX_PROCESSES)
        """When the kill of each pid was read, ns since the epoch."""
        self._stop: Waker | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the log so far, then follow it in a thread."""
        try:
            self._fd = os.open(self._device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            log.info(
                "cannot read kernel log: memory kills are those that Docker reports",
                path=str(self._device),
                error=error,
            )
            return
        self._readable = True
        self._catch_up(with_pids=False)  # the pids may have been reused since
        self._stop = Waker()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="kernel-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close the log. Idempotent."""
        if self._thread is not None and self._stop is not None:
            self._stop.wake()
            self._thread.join()
            self._stop.close()
        with self._lock:
            self._readable = False
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def include(self, container_id: str, *, pid: int, started_at: int) -> bool:
        """Return whether a container that exited by SIGKILL had an OOM kill.

        `pid` is its first process (0 if unknown), `started_at` the start in ns since the epoch. All records before this
        call count; the kernel logs a kill before the process exits. Kills of earlier runs of a container count too,
        since the clock of the kernel's log cannot be compared with Docker's.
        """
        self._catch_up(with_pids=True)
        if self._containers.get(container_id):
            return True
        killed_at = self._processes.get(pid) if pid else None
        if killed_at is None or killed_at + _SLACK_NS < started_at:
            return False
        self._containers.put(container_id, True, weight=1)  # the pid may be reused
        return True

    def _run(self, stop: Waker) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while stop.fileno() not in dict(poll.poll()):
            if not self._catch_up(with_pids=True):
                return

    def _catch_up(self, *, with_pids: bool) -> bool:
        """Read all available records; return False if the log cannot be read any more."""
        with self._lock:
            while self._readable:
                try:
                    record = self._read(self._fd, RECORD_SIZE)
                except BlockingIOError:
                    return True
                except BrokenPipeError:
                    continue  # the kernel has overwritten records; the next read returns the oldest that is left
                except OSError as error:
                    log.warning("reading kernel log failed", path=str(self._device), error=error)
                    record = b""
                if record:
                    self._note(record, with_pids=with_pids)
                else:
                    self._readable = False
            return False

    def _note(self, record: bytes, *, with_pids: bool) -> None:
        kill = kill_of(record)
        if kill is None:
            return
        for container_id in kill.containers:
            self._containers.put(container_id, True, weight=1)
        if kill.pid and with_pids and self._has_pids():
            self._processes.put(kill.pid, time.time_ns(), weight=1)
