"""The network in force, kept current by inotify on the configuration directory and its drop-in directories."""

import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog
from inotify_simple import INotify, flags  # type: ignore[import-untyped] # it ships no types

from shim.base import deadline
from shim.base.wakeup import Waker
from shim.cni.conf import READ, Choice, Listing, NetworkConfig, choose, read_directory
from shim.cni.host_files import is_complete, probe_directory
from shim.cni.plugin_status import StatusWatch
from shim.cni.programs import FindPlugins, find_plugins
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, ShimError, reason_of
from shim.hostfs.client import HostCall, call_here

T = TypeVar("T")

log = structlog.get_logger(__name__)

NOT_READY = "NetworkPluginNotReady"
"""Reason of the NetworkReady condition, as in other runtimes."""

_FIND = "find cni plugins"

FILES_NAMED = 10
"""Most unusable files that a message names."""

STATUS_SECONDS = 0.8
"""Limit of Status for the directories and the plugins' STATUS. Docker may take 4 s of Status's 5 s."""
PROBE_SECONDS = 0.05
"""Minimum wait of Status for the configuration directory, which either answers at once or hangs."""
START_SECONDS = 2.0
"""Limit of `start` for the first reading of the configuration directory."""
FIRST_SECONDS = 10.0
"""Limit of new pods for the first reading: on a busy node the start of the helper process alone takes seconds."""
RETRY_SECONDS = 1.0
"""Interval between failed readings, for example without a helper process."""
TRUSTED_SECONDS = 10.0
"""Status gives the last answer for this time while a directory does not answer, because a disk may be slow."""

_GONE = flags.DELETE_SELF | flags.MOVE_SELF
_ENTRIES = flags.CREATE | flags.CLOSE_WRITE | flags.MOVED_FROM | flags.MOVED_TO | flags.DELETE
_HANGS = "does not answer; is the volume behind it alive?"

_UNASKED = flags.IGNORED | flags.UNMOUNT


@dataclass(frozen=True, slots=True)
class NetworkStatus:
    """The NetworkReady condition."""

    ready: bool
    reason: str
    """Empty if ready."""
    message: str


class ConfDirectory:
    """Knows the network in force. Thread-safe. The directory may appear, vanish and be replaced.

    Files are read when inotify reports a change. Plugin binaries are searched on each request instead, which takes a
    few `stat` calls and is always current; their directories may not exist yet, so watches could miss changes. A link
    is followed when it is read. A change behind a link is noticed at once if it is in the directory itself, as in a
    mounted ConfigMap, whose link `..data` is swapped. A change elsewhere is noticed with the next change in the
    directory.

    All these directories may hang. Therefore no lock is held during a call, and Status waits only briefly. While the
    configuration directory hangs, the last network stays in force, and Status names the hung directory.
    """

    def __init__(
        self,
        directory: Path,
        *,
        bin_dirs: Sequence[Path],
        find: FindPlugins = find_plugins,
        call: HostCall = call_here,
        probe: HostCall = call_here,
    ) -> None:
        """`call` runs reads of the directory without a limit; `probe` runs them within the current scope."""
        self._find = find
        self._call, self._probe = call, probe
        self._directory = directory.absolute()
        self._bin_dirs = tuple(bin_dirs)
        self._plugins = StatusWatch(bin_dirs, find=find)
        self._listing = Listing(self._directory, problem=_HANGS)
        self._silent_since: float | None = None
        self._is_reported = False
        """Whether a log line has reported the directory as hung."""
        self._read = threading.Condition()
        self._is_read = False
        self._read_by = 0.0
        self._scope = deadline.Scope()
        self._known: tuple[NetworkStatus, NetworkConfig | None] | None = None
        self._known_at = 0.0
        self._had_network = False
        self._lock = threading.Lock()
        self._stop: Waker | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the directory and start to follow it. Raise FailedPrecondition if inotify is unavailable."""
        what = f"watch cni directory {self._directory}"
        try:
            watch = _Watch(self._directory, call=self._call)
        except OSError as error:
            raise FailedPrecondition(f"{what}: {reason_of(error)}") from error
        self._stop, self._scope = Waker(), deadline.Scope()
        first = Future[None]()
        self._read_by = time.monotonic() + FIRST_SECONDS
        self._thread = threading.Thread(
            target=self._follow, args=(watch, self._stop, first), name="cni-watch", daemon=True
        )
        self._thread.start()
        try:
            first.result(START_SECONDS)
        except TimeoutError:
            pass  # new pods wait for the first reading
        except OSError as error:
            self.stop()
            raise FailedPrecondition(f"{what}: {reason_of(error)}") from error

    def stop(self) -> None:
        """Stop following and wait for the thread."""
        self._plugins.stop()
        if self._thread is None or self._stop is None:
            return
        self._stop.wake()
        self._scope.cancel()
        self._thread.join()
        self._stop.close()
        self._thread = self._stop = None

    def chosen(self) -> NetworkConfig:
        """Return the network for new pods. Raise FailedPrecondition with the reason if there is none."""
        self._wait_read(self._read_by - time.monotonic())
        status, network = self._refresh()
        if network is None:
            raise FailedPrecondition(status.message)
        return network

    def status(self) -> NetworkStatus:
        """Return the NetworkReady condition. Its message names the network, and the skipped files with reasons.

        The network is not ready while the STATUS of a plugin says so.
        """
        until = time.monotonic() + STATUS_SECONDS
        self._wait_read(STATUS_SECONDS / 2)
        status, network = self._refresh_or_last(until)
        hangs = self._check_hang(until)
        if network is None:
            return status
        if hangs:
            status = replace(
                status, message=f"{status.message}; {self._directory} {_HANGS}, changes in it are not seen"
            )
        problem = self._plugins.problem(network, seconds=max(0.0, until - time.monotonic()))
        if not problem:
            return status
        text = f"network {network.name} of {self._directory / network.file}: {problem}"
        return NetworkStatus(ready=False, reason=NOT_READY, message=text)

    def _wait_read(self, seconds: float) -> None:
        """Wait for the first reading, if the watch is started."""
        if self._thread is not None and not self._is_read and seconds > 0:
            deadline.wait_for(self._read, lambda: self._is_read, what=READ, limit=seconds)

    def _note_read(self) -> None:
        with self._read:
            self._is_read = True
            self._read.notify_all()

    def _refresh_or_last(self, until: float) -> tuple[NetworkStatus, NetworkConfig | None]:
        """Return the current status and network, or the last ones after the monotonic time `until`."""
        outer = deadline.current()
        try:
            with deadline.bound(max(until - time.monotonic(), 0.0)):
                return self._refresh()
        except DeadlineExceeded as error:
            outer.check(_FIND)
            with self._lock:
                known, age = self._known, time.monotonic() - self._known_at
            if known is not None and age < TRUSTED_SECONDS:
                return known
            return _not_ready(str(error)), None

    def _refresh(self) -> tuple[NetworkStatus, NetworkConfig | None]:
        listing = self._listing
        now = self._evaluate(listing)
        with self._lock:
            changed = listing is self._listing and now != self._known
            if listing is self._listing:
                self._known, self._known_at = now, time.monotonic()
                self._had_network |= now[1] is not None
            if changed:
                _log(*now, awaited=listing.is_empty and not self._had_network)
        return now

    def _evaluate(self, listing: Listing) -> tuple[NetworkStatus, NetworkConfig | None]:
        try:
            choice = choose(listing, bin_dirs=self._bin_dirs, find=self._find)
        except ShimError as error:
            deadline.current().check(f"{_FIND} in {', '.join(map(str, self._bin_dirs))}")
            return _not_ready(str(error)), None
        return status_of(listing, choice), choice.network

    def _check_hang(self, until: float) -> bool:
        """Return whether the directory has hung for TRUSTED_SECONDS. Wait for its answer until the monotonic time."""
        outer = deadline.current()
        try:
            with deadline.bound(max(until - time.monotonic(), PROBE_SECONDS)):
                self._probe(partial(probe_directory, self._directory), path=str(self._directory), what=READ)
            silent = False
        except ShimError as error:
            outer.check(READ)
            silent = isinstance(error, DeadlineExceeded)
        with self._lock:
            self._silent_since = (self._silent_since or time.monotonic()) if silent else None
            hangs = self._silent_since is not None and time.monotonic() - self._silent_since >= TRUSTED_SECONDS
            before, self._is_reported = self._is_reported, hangs
        if hangs and not before:
            log.warning("CNI configuration directory does not answer", directory=str(self._directory))
        elif before and not hangs:
            log.info("CNI configuration directory answers again", directory=str(self._directory))
        return hangs

    def _follow(self, watch: "_Watch", stop: Waker, first: Future[None]) -> None:
        waiting = select.poll()
        waiting.register(watch.fileno(), select.POLLIN)
        waiting.register(stop, select.POLLIN)
        ready: list[int] = []
        with deadline.entered(self._scope), closing(watch), suppress(Cancelled):
            while stop.fileno() not in ready and self._follow_once(watch, first):
                wait_ms = None if watch.is_read else RETRY_SECONDS * 1000
                ready = [descriptor for descriptor, _ in waiting.poll(wait_ms)]

    def _follow_once(self, watch: "_Watch", first: Future[None]) -> bool:
        """Read the directory if it has changed. Return False if the first attempt to watch it fails."""
        try:
            watch.take_changes()
        except OSError as error:
            if not first.done():
                first.set_exception(error)
                return False
            self._note_unwatched(error)
        except ShimError as error:
            self._note_failure(error)
            return True
        if not watch.is_read:
            self._reread(watch, first)
        return True

    def _reread(self, watch: "_Watch", first: Future[None]) -> None:
        try:
            listing = read_directory(self._directory, call=self._call)
            while self._watches_more(watch, listing):
                listing = read_directory(self._directory, call=self._call)
            self._listing = listing
            watch.is_read = True
            if not first.done():
                first.set_result(None)
                self._note_read()
            self._refresh()
        except ShimError as error:
            self._note_failure(error)
        except Exception:  # without this thread the network would never change again
            watch.is_read = True
            log.exception("failed to read CNI directory, waiting for its next change", directory=str(self._directory))

    def _watches_more(self, watch: "_Watch", listing: Listing) -> bool:
        """Return whether a drop-in directory is newly watched, so that changes since its reading may be missed."""
        try:
            return watch.follow(listing.networks)
        except OSError as error:
            self._note_unwatched(error)
            return False

    def _note_unwatched(self, error: OSError) -> None:
        """Log that a watch cannot be added, for example without free watches; existing watches continue."""
        log.error("failed to watch part of CNI directory", directory=str(self._directory), error=error)

    def _note_failure(self, error: ShimError) -> None:
        if isinstance(error, Cancelled):
            raise error
        log.warning("failed to read CNI directory, will retry", directory=str(self._directory), error=error)


class _Watch:
    """inotify on a directory and all its parents, because any of them may appear, vanish or be replaced.

    Drop-in directories are watched too, once their networks are known.
    """

    def __init__(self, directory: Path, *, call: HostCall) -> None:
        self._directory = directory
        self._call = call
        self._inotify = INotify()
        self._subdirectories: dict[int, set[str]] = {}
        """The names of the watched subdirectories of each watched directory."""
        self._with_files: dict[int, Path] = {}
        """The watched directories with configuration files."""
        self._networks: frozenset[str] = frozenset()
        self._is_armed = False
        self.is_read = False
        """Whether the directory has been read since its last change."""

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def close(self) -> None:
        self._inotify.close()

    def take_changes(self) -> None:
        """Process all queued events, and add watches if necessary. Raise OSError if that fails."""
        events = self._inotify.read(timeout=0)
        if not self._is_armed or any(self._changes_directories(event) for event in events):
            self._is_armed = self.is_read = False
            self._arm()
        elif self.is_read:
            self.is_read = False  # stays so if the next line raises
            self.is_read = not any(self._changes_files(event) for event in events)

    def follow(self, networks: frozenset[str]) -> bool:
        """Watch the drop-in directories of these networks; return whether any of them was not watched before."""
        before = self._with_files
        self._networks = networks
        self._arm()
        return not self._with_files.keys() <= before.keys()

    def _arm(self) -> None:
        """Add watches from the root down, so that a concurrent change below a watched directory causes an event.

        The kernel resolves the path of each watch and could hang, so first all directories must answer.
        """
        drop_ins = [self._directory / network for network in sorted(self._networks)]
        for path in (self._directory, *drop_ins):
            self._ask(partial(probe_directory, path))
        self._is_armed = True
        before, self._subdirectories, self._with_files = self._subdirectories, {}, {}
        for path in reversed(self._directory.parents):
            self._add(path, {self._directory.relative_to(path).parts[0]})
        for path, names in ((self._directory, self._networks), *((path, set[str]()) for path in drop_ins)):
            if (watch := self._add(path, names)) is not None:
                self._with_files[watch] = path
        for watch in before.keys() - self._subdirectories.keys():
            with suppress(OSError):  # the kernel has removed the watch with its directory
                self._inotify.rm_watch(watch)

    def _add(self, path: Path, names: Iterable[str]) -> int | None:
        """Watch a directory and note its subdirectories `names`. Return None if it is missing or forbidden."""
        try:
            watch: int = self._inotify.add_watch(path, _ENTRIES | _GONE | flags.ONLYDIR)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        self._subdirectories.setdefault(watch, set()).update(names)
        return watch

    def _changes_directories(self, event: Any) -> bool:
        if event.mask & flags.Q_OVERFLOW:
            return True
        names = self._subdirectories.get(event.wd)
        return names is not None and (bool(event.mask & (_GONE | _UNASKED)) or event.name in names)

    def _changes_files(self, event: Any) -> bool:
        directory = self._with_files.get(event.wd)
        if directory is None:
            return False
        return not event.mask & flags.CREATE or self._ask(partial(is_complete, directory / event.name))

    def _ask(self, question: Callable[[], T]) -> T:
        return self._call(question, path=str(self._directory), what=READ)


def status_of(listing: Listing, choice: Choice) -> NetworkStatus:
    """Return the NetworkReady condition for the content of a directory."""
    where = listing.directory
    passed = "; ".join(map(str, choice.skipped[:FILES_NAMED]))
    if more := len(choice.skipped) - FILES_NAMED:
        passed += f"; and {more} more" if more > 0 else ""
    if choice.network is not None:
        text = f"network {choice.network.name} of {where / choice.network.file}"
        return NetworkStatus(ready=True, reason="", message=text + (f"; not used: {passed}" if passed else ""))
    if listing.problem:
        text = f"no pod network: cni configuration directory {where} {listing.problem}"
    else:
        text = f"no pod network: no usable cni configuration in {where}: {passed}"
    return NetworkStatus(ready=False, reason=NOT_READY, message=text)


def _not_ready(why: str) -> NetworkStatus:
    return NetworkStatus(ready=False, reason=NOT_READY, message=f"no pod network: {why}")


def _log(status: NetworkStatus, network: NetworkConfig | None, *, awaited: bool) -> None:
    """Log a change. A network is `awaited` on a new node without configuration, where the add-on itself is a pod."""
    if network is not None:
        log.info("CNI network ready", network=network.name, detail=status.message)
    elif awaited:
        log.info("no CNI network yet", detail=status.message)
    else:
        log.warning("no CNI network", detail=status.message)
