"""Measures the disk usage of containers' writable layers, slowly in one thread, never during a request.

The same thread measures the image store (`shim.stats.images`).

Docker could measure layers too (`inspect?size=1`), but dockerd would walk them at full speed, which loads the node.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from shim.base import deadline
from shim.dockerd.image_store import image_copy, layer_directory, writable_directory
from shim.dockerd.overlay import upper_directory
from shim.domain.errors import ShimError
from shim.runtime import Runtime
from shim.stats.readings import running_containers
from shim.stats_cache import FileSystem, LayerUsage
from shim.view.records import ContainerRecord

SHARE = 0.03
"""Fraction of one core that the walks may use in the long run."""
_BURST = 0.1
"""Maximum seconds of CPU time to save up and use at once. New containers have small layers."""
PERIOD = 30.0
"""Minimum seconds between two measurements of a layer."""
_COOLDOWN_FACTOR = 300
"""After a measurement, a layer is not measured again for this many times the CPU time that the measurement took."""

_BLOCK = 512
"""Bytes of a block in stat(2), on every file system."""
_SLICE = 256
"""Directory entries between two checks of the budget."""
_MAX_LINKED = 100_000
"""Maximum remembered inodes of files with several names. For further files, each name counts as its share of the
file."""
_MAX_PENDING = 20_000
"""Maximum remembered subdirectories of a directory. A directory with more is read again for the rest."""
_SLICES_PER_TURN = 20
"""Slices after which an unfinished walk lets other walks run."""

_STOP_SECONDS = 0.5
_PROC = Path("/proc")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sum:
    """Disk usage of a directory tree, including its top directory."""

    used_bytes: int
    inodes: int


def upper_of(rt: Runtime, record: ContainerRecord) -> Path | None:
    """Return the directory of a container's writable layer; None unless it was found while the container ran.

    The first result is cached, so a process of the container cannot change it by a new root.
    """
    known = rt.stats_cache.uppers.get(record.id)
    if known is None and record.state.pid:
        named = _whole(rt, upper_directory(_PROC / str(record.state.pid)))
        known = named or writable_directory(rt.facts.info(), record.id)
        if known is not None:
            rt.stats_cache.uppers[record.id] = known
    return known


def _whole(rt: Runtime, upper: Path) -> Path | None:
    if not upper.parts:
        return None
    return upper if upper.is_absolute() else layer_directory(rt.facts.info(), upper)


def file_system_of(directory: Path) -> FileSystem | None:
    """Describe the file system of a layer; None if the layer is gone."""
    try:
        found, device = os.statvfs(directory), directory.stat().st_dev
    except OSError:
        return None
    return FileSystem(
        size=found.f_blocks * found.f_frsize,
        inodes=found.f_files,
        inodes_free=found.f_ffree,
        major=os.major(device),
        minor=os.minor(device),
    )


def walk(top: Path) -> Generator[None, None, Sum]:
    """Return the disk usage of `top` and everything below it; yield after every _SLICE entries.

    Count like `du`: blocks on disk, a file with several names once, one file system. Entries that vanish during the
    walk are omitted. Raise OSError if `top` itself cannot be read.
    """
    # Strategy: depth first with a stack of directories; the caller may pause at each yield. A file with several names
    # counts at its first name, as long as inodes can be remembered (_MAX_LINKED). Beyond this limit each name counts as
    # its share of the file, so the sum stays right.
    first = top.stat()
    used, inodes = float(first.st_blocks * _BLOCK), 1.0
    linked: set[int] = set()
    # Directories to read: path, inode number, and the number of entries already counted.
    waiting = [(str(top), first.st_ino, 0)]
    seen = 0
    while waiting:
        directory, number, counted = waiting.pop()
        before = len(waiting)
        for position, entry in enumerate(_entries(directory, device=first.st_dev, number=number)):
            seen += 1
            if seen % _SLICE == 0:
                yield
            status = _status(entry) if position >= counted else None
            if status is None or status.st_dev != first.st_dev or status.st_ino in linked:
                continue
            part = 1.0
            if entry.is_dir(follow_symlinks=False):
                if len(waiting) - before == _MAX_PENDING:
                    # Read the rest after these subdirectories.
                    waiting.insert(before, (directory, number, position))
                    break
                waiting.append((f"{directory}/{entry.name}", status.st_ino, 0))
            elif status.st_nlink > 1 and len(linked) < _MAX_LINKED:
                linked.add(status.st_ino)
            else:
                part = 1 / max(1, status.st_nlink)
            used += part * status.st_blocks * _BLOCK
            inodes += part
    return Sum(round(used), round(inodes))


def growth(top: Path, *, since: Path) -> Generator[None, None, Sum]:
    """Return the disk usage of `top` beyond the usage of `since`; otherwise like `walk`."""
    before = yield from walk(since)
    now = yield from walk(top)
    return Sum(max(0, now.used_bytes - before.used_bytes), max(0, now.inodes - before.inodes))


def _entries(directory: str, *, device: int, number: int) -> Generator[os.DirEntry[str], None, None]:
    """Yield the entries of a directory, if it still has this device and inode number.

    Meanwhile a container may have replaced the directory, or one of its parents, by a link out of the layer.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # the directory has vanished, or its path is too long for the kernel
        return
    try:
        found = os.fstat(opened)
        if (found.st_dev, found.st_ino) == (device, number):
            with os.scandir(opened) as entries:
                yield from entries
    except OSError:
        return
    finally:
        os.close(opened)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


class Budget:
    """A CPU budget: `share` of the elapsed time. At most `burst` seconds are saved up."""

    def __init__(self, *, share: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._at = clock()

    def spend(self, seconds: float) -> float:
        """Charge used CPU seconds; return how many seconds to wait before the next work."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._share) - seconds
        self._at = now
        return max(0.0, -self._left / self._share)


class Parts(Protocol):
    """Further directories to measure, one at a time."""

    def next_part(self) -> tuple[str, Path] | None:
        """Return name and directory of the next part; None if no part is due."""
        ...

    def note(self, name: str, total: Sum) -> None:
        """Record the measurement of a part, zero if it could not be read."""
        ...


@dataclass(slots=True, eq=False)
class _Walk:
    name: str
    """Container id, or name of the part; identifies the walk, also in logs."""
    under_way: Generator[None, None, Sum]
    finish: Callable[["_Walk", Sum | None], None]
    """Receives the result; None if the directory could not be read."""
    cost: float = 0.0
    """Seconds of CPU time used so far."""


class LayerMeter:
    """Measures the layers of running containers in turns, between `start` and `stop`.

    A long walk lets other walks run every few thousand entries, so that a container with a million files does not delay
    the others. A newly started container is measured at once, even if the budget is exhausted, because its metrics lack
    the file system until then.
    """

    def __init__(
        self,
        rt: Runtime,
        *,
        parts: Parts | None = None,
        budget: Budget | None = None,
        interval: float = 1.0,
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """Measure the layers of `rt`, and `parts` one at a time, within one budget.

        New containers are noticed every `interval` seconds. `wait` pauses for a number of seconds, and returns early if
        a container starts or the meter stops.
        """
        self._rt = rt
        self._parts = parts
        self._budget = budget or Budget(share=SHARE, burst=_BURST)
        self._interval = interval
        self._walks: deque[_Walk] = deque()
        self._due: dict[str, float] = {}
        self._has_part = False
        """Whether a part is among the walks."""
        self._stopping = threading.Event()
        self._container_started = threading.Event()
        """Also set by `stop`."""
        rt.stats_cache.on_container_started(self._container_started.set)
        self._wait = wait or self._container_started.wait
        self._scope = deadline.Scope()
        self._thread = threading.Thread(target=self._run, name="layers", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and abandon the current walk. Do not wait for a hanging disk."""
        self._stopping.set()
        self._scope.cancel()
        self._container_started.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            until = time.monotonic() + self._interval
            try:
                self._measure()
            except Exception:  # without this thread all figures would silently go stale
                log.exception("failed to measure layers, will retry")
            if self._container_started.wait(max(0.0, until - time.monotonic())):
                self._container_started.clear()

    def _measure(self) -> None:
        """Start the walks that are due, and advance walks until the next interval."""
        try:
            with deadline.entered(self._scope):
                self._begin_due()
        except ShimError as error:
            log.debug("cannot list layers to measure", error=error)
        if not self._has_part:
            self._begin_part()
        until = time.monotonic() + self._interval
        while self._walks and time.monotonic() < until and not self._stopping.is_set():
            self._advance(self._walks.popleft())
            if self._container_started.is_set():  # checked after the walk, so that each pass advances a walk
                return

    def _begin_due(self) -> None:
        now = time.monotonic()
        records = {str(record.id): record for record in running_containers(self._rt)}
        self._due = {key: due for key, due in self._due.items() if key in records}
        under_way = {walk.name for walk in self._walks}
        for key in records.keys() - under_way:
            if self._due.get(key, now) > now:
                continue
            upper = upper_of(self._rt, records[key])
            if upper is not None:
                # Layers without any measurement go first.
                begin = self._walks.append if key in self._due else self._walks.appendleft
                copy = image_copy(upper)
                measuring = walk(upper) if copy is None else growth(upper, since=copy)
                begin(_Walk(key, measuring, partial(self._finish_layer, upper)))
            # A successful walk replaces this at its end.
            self._due[key] = now + PERIOD

    def _begin_part(self) -> None:
        if self._parts is None:
            return
        self._has_part = False  # also if the next part fails
        with deadline.entered(self._scope):
            part = self._parts.next_part()
        self._has_part = part is not None
        if part is not None:
            name, top = part
            self._walks.append(_Walk(name, walk(top), partial(self._finish_part, self._parts)))

    def _advance(self, turn: _Walk) -> None:
        """Advance a walk by one turn, or until a container starts; an unfinished walk goes to the end of the queue."""
        for _ in range(_SLICES_PER_TURN):
            before = turn.cost
            more = self._slice(turn)
            # Also pause after the last slice, because many small layers cost as much as a large layer.
            pause = self._budget.spend(turn.cost - before)
            if pause:
                self._wait(pause)
            if not more:
                return
            if self._container_started.is_set():
                break
        self._walks.append(turn)

    def _slice(self, turn: _Walk) -> bool:
        """Advance a walk by one slice; return whether it is unfinished."""
        began = time.thread_time()
        try:
            next(turn.under_way)
        except StopIteration as end:
            total: Sum | None = end.value
        except OSError as error:
            log.debug("failed to measure layer", layer=turn.name, error=error)
            total = None
        except Exception:  # a walk that never finishes would block all further parts
            log.exception("failed to measure layer", layer=turn.name)
            total = None
        else:
            return True
        finally:
            turn.cost += time.thread_time() - began
        turn.finish(turn, total)
        return False

    def _finish_layer(self, upper: Path, turn: _Walk, total: Sum | None) -> None:
        if total is None:
            return
        self._rt.stats_cache.layers[turn.name] = LayerUsage(
            at=time.time_ns(),
            used_bytes=total.used_bytes,
            inodes=total.inodes,
            store=os.fsencode(upper.parents[2]).decode(errors="replace"),
            file_system=file_system_of(upper),
        )
        self._due[turn.name] = time.monotonic() + max(PERIOD, _COOLDOWN_FACTOR * turn.cost)

    def _finish_part(self, parts: Parts, turn: _Walk, total: Sum | None) -> None:
        parts.note(turn.name, total or Sum(0, 0))
        self._begin_part()
