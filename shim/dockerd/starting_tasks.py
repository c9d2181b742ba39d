"""Finds the first process of a starting container before Docker answers the start.

runc keeps the state of each container in a directory named by its id, below Docker's `exec-root`. The file `state.json`
in it names the first process as soon as the process has all namespaces and sysctls. The process then waits 30 to 50 ms
for its start. Some releases of runc also write the file earlier, with the pid -1.

By then Docker has finished with the network namespace. Most Engines set it up in an earlier hook of runc. Engine 26.0,
and Engines from 28.0 on, set it up between create and start, but only bring `lo` up, which runc has already done.

If Docker's remaining work in the namespace is harmless, the namespace can be used 10 to 15 ms earlier. runc first
creates its directory for the container, then the control group, and immediately afterwards the namespaces with their
first process. No event reports the last step. So after the first step the control group is read every millisecond.

Docker's API reports none of this. With another OCI runtime, or without access to Docker's directories, the first
process stays unknown until Docker answers.
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
"""Maximum bytes of a file of runc, which contains the container's configuration including its seccomp profile."""

SEARCH_SECONDS = 0.001
"""Interval between two reads of a control group."""
SEARCHES = 30
"""Maximum reads of a control group per start; after that only runc's state is used. An idle machine needs 10 reads."""
AT_ONCE = 2
"""Maximum concurrent starts with reads of control groups. With more starts the processors are the bottleneck."""

_READ = 1 << 16
"""Maximum bytes read from a kernel file. A starting container has few processes."""
_OWN_NAMESPACE = os.readlink("/proc/self/ns/pid")  # noqa: PTH115

_STATE = "state.json"
_CONTAINERS = Path("runtime-runc/moby")
"""runc's directory below `exec-root`: Docker's name for runc, and Docker's namespace in containerd."""

log = structlog.get_logger(__name__)


class _State(msgspec.Struct):
    init_process_pid: int = 0


def state_file(exec_root: Path, container_id: str) -> Path:
    """Return the path of runc's state of a container."""
    return exec_root / _CONTAINERS / container_id / _STATE


class StartingTask:
    """The wait for the first process of a starting container. Thread-safe."""

    def __init__(self, container_id: str, changed: threading.Condition, *, group: str) -> None:
        self.group = group
        self.searches = SEARCHES if group else 0
        """Remaining reads of the control group; used only by the thread."""
        self._what = f"wait for the first process of container {container_id}"
        self._changed = changed
        self._pid = 0
        self._ended = False

    def wait(self) -> int:
        """Wait for the first process and return its pid; 0 if `end` is called first.

        Raise Cancelled or DeadlineExceeded when the current scope ends.
        """
        deadline.wait_for(self._changed, lambda: self._pid or self._ended, what=self._what)
        return self._pid

    def end(self) -> None:
        """End the wait, because Docker has answered or the start cannot be watched."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def found(self, pid: int) -> None:
        """Record the first process."""
        with self._changed:
            self._pid = pid
            self._changed.notify_all()


class TaskWatch:
    """Waits for the first processes of starting containers. Thread-safe.

    All waits share a thread and an inotify instance, because a node has few instances. The first wait creates both.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._directory: Path | None = None
        self._tasks: dict[str, StartingTask] = {}
        """By container id."""
        self._watched: dict[int, str] = {}
        """Container ids by the watch number of their directory."""
        self._forming: dict[str, StartingTask] = {}
        """The tasks whose control groups are read; used only by the thread."""
        self._inotify: INotify | None = None
        self._stop: Waker | None = None
        self._thread: threading.Thread | None = None

    def learn(self, root: str) -> None:
        """Set Docker's `exec-root`, which may change with a restart of Docker; an empty root is ignored."""
        if root:
            self._directory = Path(root) / _CONTAINERS

    @contextmanager
    def starting(self, container_id: str, *, group: str = "") -> Iterator[StartingTask]:
        """Watch for the first process of a container that is started in the block.

        `group` is the directory of its control group. It is empty if the network namespace must not be used before
        runc's state names the process.
        """
        task = StartingTask(container_id, self._changed, group=group)
        try:
            self._add(container_id, task)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            log.debug("cannot watch for first process of container", container=container_id, error=error)
            task.end()
        try:
            yield task
        finally:
            with self._changed:
                self._tasks.pop(container_id, None)
            self._drop_watches()

    def close(self) -> None:
        """End the thread. No container may be starting."""
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
            # Add the watch each time, because the directory may be new. A second watch of it has no effect.
            inotify.add_watch(self._directory, flags.CREATE | flags.ONLYDIR)
            self._tasks[container_id] = task

    def _running_locked(self) -> INotify:
        if self._inotify is None:
            self._inotify = INotify()
        if self._thread is None:
            self._stop = self._stop or Waker()
            thread = threading.Thread(
                target=self._run, args=(self._inotify, self._stop), name="engine-tasks", daemon=True
            )
            thread.start()
            self._thread = thread
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
            assert containers is not None  # noqa: S101 - without a directory there are no tasks
            pid = self._first_process(inotify, containers / container_id)
            if pid > 0:
                tasks[container_id].found(pid)
            elif tasks[container_id].searches and len(tasks) <= AT_ONCE:
                self._forming[container_id] = tasks[container_id]

    def _search(self) -> None:
        """Read the control groups of the containers that runc is creating."""
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
        """Watch a container's directory for a new state; return the pid in the current state, or 0."""
        try:
            number = inotify.add_watch(directory, flags.MOVED_TO | flags.ONLYDIR)
            with self._changed:
                self._watched[number] = directory.name
            content = read_regular(directory / _STATE, most=STATE_LIMIT)
            return msgspec.json.decode(content, type=_State).init_process_pid
        except (OSError, ValueError):
            return 0  # the file is missing, or another runtime's
        finally:
            self._drop_watches()

    def _drop_watches(self) -> None:
        """Remove watches without a task."""
        with self._changed:
            for number in [number for number, container in self._watched.items() if container not in self._tasks]:
                del self._watched[number]
                if self._inotify is not None:
                    with suppress(OSError):  # the kernel has removed it with the directory
                        self._inotify.rm_watch(number)


def _first_of_namespace(group: str) -> int:
    """Return the pid of the process in a control group that is the first of its PID namespace; 0 if there is none.

    When runc has created this process, all its namespaces exist.
    """
    # Plain system calls: this runs each millisecond, and `Path` takes several times as long.
    try:
        for pid in map(int, _content(f"{group}/cgroup.procs").split()):
            if os.readlink(f"/proc/{pid}/ns/pid") != _OWN_NAMESPACE and _is_first(pid):  # noqa: PTH115
                return pid
    except (OSError, ValueError):
        pass  # the group is missing, or a process has exited
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
