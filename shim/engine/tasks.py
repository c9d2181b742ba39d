"""The first process of a container, known before Docker answers the start.

runc keeps the state of each container in a directory of its id, below Docker's own one for what runs (`exec-root`). The
file `state.json` there names the first process as soon as it has all its namespaces and sysctls; it waits to be started
then, for 30 to 50 ms. Some releases of runc write the file once before that, with -1 for the process.

By then Docker has also done what it does to the network namespace. Most Engines do it in a hook that runc runs before;
26.0, and those from 28.0 on, do it between create and start, but only bring `lo` up, as runc has done.

Where what is left for them there does no harm, the namespace can be used 10 to 15 ms earlier. runc makes its directory
for the container first, then the control group, and then, at once, the namespaces and the process that lives in them.
No event shows the last step; from the first one on, the control group is read every millisecond.

No API of Docker's shows this. A caller must do without where it cannot be seen: under another OCI runtime, or with
Docker's directories out of sight.
"""

import os
import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import structlog
from inotify_simple import Event, INotify, flags  # type: ignore[import-untyped] # it ships no types

from shim.base import deadline
from shim.base.atomic_files import read_regular
from shim.base.proc import value_of
from shim.base.wakeup import Waker

STATE_LIMIT = 4 << 20
"""Most bytes of a file of runc's: the whole configuration of the container, its seccomp profile included."""

SEARCH_SECONDS = 0.001
"""Time between two readings of a control group."""
SEARCHES = 30
"""Most readings for one container; then the state of runc is waited for. They are 10 where the machine is idle."""
AT_ONCE = 2
"""Most containers whose control groups are read: where more are started, they wait for the processors."""

_READ = 1 << 16
"""Most bytes of a file of the kernel's: a container that is starting has some processes."""
_OWN_NAMESPACE = os.readlink("/proc/self/ns/pid")  # noqa: PTH115

_STATE = "state.json"
_CONTAINERS = Path("runtime-runc/moby")
"""Below `exec-root`: by Docker's name for runc, and by its namespace in containerd."""

log = structlog.get_logger(__name__)


class _State(msgspec.Struct):
    init_process_pid: int = 0


def state_file(exec_root: Path, container_id: str) -> Path:
    """Return the file in which runc keeps the state of a container."""
    return exec_root / _CONTAINERS / container_id / _STATE


class StartingTask:
    """A container whose start is under way. Thread-safe."""

    def __init__(self, container_id: str, changed: threading.Condition, *, group: str) -> None:
        self.group = group
        self.searches = SEARCHES if group else 0
        """How often the control group may be read yet; of the thread's own."""
        self._what = f"wait for the first process of container {container_id}"
        self._changed = changed
        self._pid = 0
        self._ended = False

    def wait(self) -> int:
        """Wait for its first process and return its pid; 0 if `end` comes before, or nothing can be known.

        Raise Cancelled or DeadlineExceeded with the current scope.
        """
        deadline.wait_for(self._changed, lambda: self._pid or self._ended, what=self._what)
        return self._pid

    def end(self) -> None:
        """End the wait: Docker has answered."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def found(self, pid: int) -> None:
        """Note the first process."""
        with self._changed:
            self._pid = pid
            self._changed.notify_all()


class TaskWatch:
    """Waits for the first processes of containers that Docker is asked to start. Thread-safe.

    One inotify instance and one thread for all, from the first wait on: a node has few instances.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._directory: Path | None = None
        self._tasks: dict[str, StartingTask] = {}
        """By container id."""
        self._watched: dict[int, str] = {}
        """Container ids by the number of the watch of their directory."""
        self._forming: dict[str, StartingTask] = {}
        """Those whose control groups are read; of the thread's own."""
        self._inotify: INotify | None = None
        self._stop: Waker | None = None
        self._thread: threading.Thread | None = None

    def learn(self, root: str) -> None:
        """Note Docker's `exec-root`, which may be another after a restart of Docker; empty is ignored."""
        if root:
            self._directory = Path(root) / _CONTAINERS

    @contextmanager
    def starting(self, container_id: str, *, group: str = "") -> Iterator[StartingTask]:
        """Watch for a container that is to be started in the block.

        `group` is the directory of its control group, where its network namespace may be used as soon as it is there.
        """
        task = StartingTask(container_id, self._changed, group=group)
        try:
            self._add(container_id, task)
        except OSError as error:
            log.debug("cannot watch for first process of container", container=container_id, error=error)
            task.end()
        try:
            yield task
        finally:
            with self._changed:
                self._tasks.pop(container_id, None)
            self._drop_watches()

    def close(self) -> None:
        """End the thread. No container may be starting any more."""
        if self._thread is None or self._stop is None or self._inotify is None:
            return
        self._stop.wake()
        self._thread.join()
        self._stop.close()
        self._inotify.close()

    def _add(self, container_id: str, task: StartingTask) -> None:
        with self._changed:
            if self._directory is None:
                task.end()
                return
            inotify = self._running_locked()
            # Again each time, which changes nothing where it is watched already: the directory may be a new one.
            inotify.add_watch(self._directory, flags.CREATE | flags.ONLYDIR)
            self._tasks[container_id] = task

    def _running_locked(self) -> INotify:
        if self._inotify is None:
            self._inotify = INotify()
        if self._thread is None:
            self._stop = Waker()
            self._thread = threading.Thread(
                target=self._run, args=(self._inotify, self._stop), name="engine-tasks", daemon=True
            )
            self._thread.start()
        return self._inotify

    def _run(self, inotify: INotify, stop: Waker) -> None:
        poll = select.poll()
        poll.register(inotify, select.POLLIN)
        poll.register(stop, select.POLLIN)
        while stop.fileno() not in (ready := dict(poll.poll(SEARCH_SECONDS * 1000 if self._forming else None))):
            if ready:
                self._process(inotify, inotify.read(timeout=0))
            if self._forming:
                self._search()

    def _process(self, inotify: INotify, events: Sequence[Event]) -> None:
        with self._changed:
            tasks, watched, containers = dict(self._tasks), dict(self._watched), self._directory
        if any(event.mask & flags.Q_OVERFLOW for event in events):
            changed = set(tasks)
        else:
            changed = {watched.get(event.wd, event.name) for event in events}
        for container_id in changed & tasks.keys():
            assert containers is not None  # noqa: S101 - without it nothing is waited for
            pid = self._first_process(inotify, containers / container_id)
            if pid > 0:
                tasks[container_id].found(pid)
            elif tasks[container_id].searches and len(tasks) <= AT_ONCE:
                self._forming[container_id] = tasks[container_id]

    def _search(self) -> None:
        """Read the control groups of containers that runc is making."""
        with self._changed:
            forming = {name: task for name, task in self._forming.items() if self._tasks.get(name) is task}
        for name, task in list(forming.items()):
            task.searches -= 1
            pid = _first_of_namespace(task.group)
            if pid:
                task.found(pid)
            if pid or not task.searches:
                del forming[name]
        self._forming = forming

    def _first_process(self, inotify: INotify, directory: Path) -> int:
        """Return the pid that the state of a container names now; from now on, a new state is an event."""
        try:
            number = inotify.add_watch(directory, flags.MOVED_TO | flags.ONLYDIR)
            with self._changed:
                self._watched[number] = directory.name
            content = read_regular(directory / _STATE, most=STATE_LIMIT)
            return msgspec.json.decode(content, type=_State).init_process_pid
        except (OSError, ValueError):
            return 0  # not there yet, or gone again; or a file of no runc that is known
        finally:
            self._drop_watches()

    def _drop_watches(self) -> None:
        """Remove the watches of containers that nothing waits for."""
        with self._changed:
            for number in [number for number, container in self._watched.items() if container not in self._tasks]:
                del self._watched[number]
                if self._inotify is not None:
                    with suppress(OSError):  # the kernel has removed it with the directory
                        self._inotify.rm_watch(number)


def _first_of_namespace(group: str) -> int:
    """Return the process of a control group that is the first of a PID namespace; 0 if there is none.

    runc makes it last: all its namespaces are there.
    """
    # By system calls alone, for this is read each millisecond: `Path` takes several times as long.
    try:
        for pid in map(int, _content(f"{group}/cgroup.procs").split()):
            if os.readlink(f"/proc/{pid}/ns/pid") != _OWN_NAMESPACE and _is_first(pid):  # noqa: PTH115
                return pid
    except (OSError, ValueError):
        pass  # not there yet, or a process that has ended
    return 0


def _is_first(pid: int) -> bool:
    numbers = value_of(_content(f"/proc/{pid}/status"), b"NSpid").split()
    return len(numbers) > 1 and numbers[-1] == b"1"


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ)
    finally:
        os.close(descriptor)
