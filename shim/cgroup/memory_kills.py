"""Which containers the kernel has killed a process of for lack of memory, by the kernel's own log.

Docker learns of such a kill from the counters of a control group, which may be gone before they are read. The kernel's
log names the group and the process, before the process has ended, on both versions of control groups. In mm/oom_kill.c
and mm/memcontrol.c of Linux 5.0 and later there are three lines of it:

    oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/kubepods/pod1/<id>,task=sh,pid=123,uid=0
    Tasks in /kubepods/pod1/<id> are going to be killed due to memory.oom.group set
    Memory cgroup out of memory: Killed process 123 (sh) total-vm:...

The first is written for ten kills in five seconds, on the whole machine, and the last for each. So a process counts as
well as a group.
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
"""Bytes of a read; no kernel gives a longer record to a reader."""
MAX_CONTAINERS = 4096
"""Containers that are remembered, the last ones: several times as many as a node has, ended ones included."""
MAX_PROCESSES = 4096
"""Processes that are remembered, the last ones. What is asked for ended a moment ago."""

_FROM_KERNEL = re.compile(rb"[0-7],")
"""Level and facility of a record, in one number, if the facility is the kernel's, 0. What a program writes always has
another one: the kernel sees to it."""
_GROUP_ABOVE, _GROUP_BELOW = b"Tasks in ", b" are going to be killed due to memory.oom.group set"
_SUMMARY, _SUMMARY_GROUP, _SUMMARY_TASK = b"oom-kill:constraint=", b",task_memcg=", b",task="
_PROCESS = re.compile(rb"(?:Memory cgroup o|O)ut of memory(?: \([a-z_]+\))?: Killed process ([1-9]\d{0,9}) ")
_ID = re.compile(rb"/(?:[^/]*-)?([0-9a-f]{64})(?:\.scope)?(?=/|$)")
"""A container's full id in the path of a control group, as Docker's drivers name one: `<id>` or `docker-<id>.scope`."""

_SLACK_NS = 10 * SECOND
"""How much later than the end of a process Docker's `StartedAt` may seem to be: Docker takes it after the start."""
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of the pid namespace of the machine itself (PROC_PID_INIT_INO), whose pids the kernel writes."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Kill:
    """What a record of the kernel's log says of a kill for lack of memory."""

    containers: tuple[str, ...] = ()
    """Ids in the path of the group: the container's, perhaps within those of others around it, as in kind."""
    pid: int = 0
    """Of the process, 0 if the record names a group."""


def kill_of(record: bytes) -> Kill | None:
    """Return the kill that a record of /dev/kmsg is about, None if it is about anything else.

    A text is recognized by its beginning: names of processes and paths, which programs choose, may hold any other part.
    """
    # What follows on more lines, each with a blank before it, are keys and values beside the text.
    head, _, text = record.partition(b"\n")[0].partition(b";")
    if not _FROM_KERNEL.match(head):
        return None
    if text.startswith(_SUMMARY):
        # The first of each: the name of a process comes later, and a container's id before what it may name itself.
        return _of_group(text.partition(_SUMMARY_GROUP)[2].partition(_SUMMARY_TASK)[0])
    if text.startswith(_GROUP_ABOVE) and text.endswith(_GROUP_BELOW):
        return _of_group(text[len(_GROUP_ABOVE) : -len(_GROUP_BELOW)])
    process = _PROCESS.match(text)
    return Kill(pid=int(process[1])) if process else None


def _of_group(path: bytes) -> Kill | None:
    found = tuple(found.decode() for found in _ID.findall(path))
    return Kill(containers=found) if found else None


def pids_are_the_kernels() -> bool:
    """Whether the pids that this process sees are those that the kernel writes; not in a container, as in kind."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


class MemoryKills:
    """Kills for lack of memory since the boot of the machine, as far as the kernel still has them. Thread-safe.

    A thread waits for new records, so that none is lost that the kernel overwrites later. There are none where the log
    cannot be read.
    """

    def __init__(
        self,
        device: Path = KERNEL_LOG,
        *,
        read: Callable[[int, int], bytes] = os.read,
        has_pids: Callable[[], bool] = pids_are_the_kernels,
    ) -> None:
        """`read` reads one record; `has_pids` returns whether pids in records are those of this process's namespace."""
        self._device = device
        self._read = read
        self._has_pids = has_pids
        self._lock = threading.Lock()
        """Held while records are read."""
        self._fd = -1
        self._readable = False
        self._containers: LruCache[str, bool] = LruCache(capacity=MAX_CONTAINERS)
        self._processes: LruCache[int, int] = LruCache(capacity=MAX_PROCESSES)
        """When the kill of a process was read, ns since the epoch, by its pid."""
        self._stop: Waker | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read what the log holds, and go on in a thread."""
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
        self._catch_up(with_pids=False)  # nobody knows whose pids these were
        self._stop = Waker()
        self._thread = threading.Thread(target=self._run, args=(self._stop,), name="memory-kills", daemon=True)
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
        """Whether a process of a container that has ended by SIGKILL was killed for lack of memory.

        `pid` is that of its first process, 0 if it is not known, and `started_at` when that began, ns since the epoch.
        What the kernel has written before this call is included, and it writes before a process has ended. A container
        that was restarted by hand counts as the same: the clock of the kernel's log goes its own way.
        """
        self._catch_up(with_pids=True)
        if self._containers.get(container_id):
            return True
        killed_at = self._processes.get(pid) if pid else None
        if killed_at is None or killed_at + _SLACK_NS < started_at:
            return False
        self._containers.put(container_id, True, weight=1)  # pids are used again
        return True

    def _run(self, stop: Waker) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while stop.fileno() not in dict(poll.poll()):
            if not self._catch_up(with_pids=True):
                return

    def _catch_up(self, *, with_pids: bool) -> bool:
        """Read all records that there are; return False if no more can be read."""
        with self._lock:
            while self._readable:
                try:
                    record = self._read(self._fd, RECORD_SIZE)
                except BlockingIOError:
                    return True
                except BrokenPipeError:
                    continue  # the kernel has overwritten the next ones; those after them follow
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
