"""The first process of a container, known before Docker answers the start.

runc keeps the state of each container in a directory of its id, below Docker's own one for what runs (`exec-root`). The
file `state.json` there names the first process as soon as it has all its namespaces and sysctls; it waits to be started
then, for 30 to 50 ms. Some releases of runc write the file once before that, with -1 for the process.

By then Docker has also done what it does to the network namespace. Most Engines do it in a hook that runc runs before;
26.0, and those from 28.0 on, do it between create and start, but only bring `lo` up, as runc has done.

No API of Docker's shows this. A caller must do without where it cannot be seen: under another OCI runtime, or with
Docker's directories out of sight.
"""

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
from shim.base.wakeup import Waker

STATE_LIMIT = 4 << 20
"""Most bytes of a file of runc's: the whole configuration of the container, its seccomp profile included."""

_STATE = "state.json"
_CONTAINERS = Path("runtime-runc/moby")
"""Below `exec-root`: by Docker's name for runc, and by its namespace in containerd."""

log = structlog.get_logger(__name__)


class _State(msgspec.Struct):
    init_process_pid: int = 0


class StartingTask:
    """A container whose start is under way. Thread-safe."""

    def __init__(self, container_id: str, changed: threading.Condition) -> None:
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
        self._inotify: INotify | None = None
        self._stop: Waker | None = None
        self._thread: threading.Thread | None = None

    def learn(self, root: str) -> None:
        """Note Docker's `exec-root`, which may be another after a restart of Docker; empty is ignored."""
        if root:
            self._directory = Path(root) / _CONTAINERS

    @contextmanager
    def starting(self, container_id: str) -> Iterator[StartingTask]:
        """Watch for a container that is to be started in the block."""
        task = StartingTask(container_id, self._changed)
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
        while stop.fileno() not in dict(poll.poll()):
            self._process(inotify, inotify.read(timeout=0))

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
