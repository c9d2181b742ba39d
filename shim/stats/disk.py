"""What containers have written to their layers: measured by one thread, slowly, and never for a request.

What images take is measured beside it, see `shim.stats.images`.

Docker's own way (`inspect?size=1`) walks in the daemon as fast as it can, which loads nodes.
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
from shim.domain.errors import ShimError
from shim.engine.image_store import image_copy, layer_directory, writable_directory
from shim.engine.overlay import upper_directory
from shim.runtime import Runtime
from shim.stats.readings import running_containers
from shim.stats_cache import FileSystem, LayerUsage
from shim.view.records import ContainerRecord

SHARE = 0.03
"""Of one core, over any longer time."""
_BURST = 0.1
"""Seconds of CPU time that may be used at once after a pause: the layers of new containers are small."""
PERIOD = 30.0
"""Seconds between two measurements of one layer, when they are cheap."""
_COOLDOWN_FACTOR = 300
"""A layer is not measured again for this many times the CPU time that its measurement took."""

_BLOCK = 512
"""Bytes of a block of stat(2), whatever the file system has."""
_SLICE = 256
"""Entries between two checks of the budget."""
_MAX_LINKED = 100_000
"""Files with several names that are remembered; of each further one, every name counts as its part of the file."""
_MAX_PENDING = 20_000
"""Subdirectories of one directory that are remembered; where there are more, it is read again for the rest."""
_SLICES_PER_TURN = 20
"""Slices after which a walk that is not done lets the others pass."""

_STOP_SECONDS = 0.5
_PROC = Path("/proc")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Sum:
    """What is below a directory, itself included."""

    used_bytes: int
    inodes: int


def upper_of(rt: Runtime, record: ContainerRecord) -> Path | None:
    """Return the directory of a container's layer, found while it ran; None where it cannot be seen.

    Found once: what a process of the container makes of its own root later is not followed.
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
    """Describe the file system of a layer; None when the layer has gone."""
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
    """Add up what is below `top`, and yield after each few hundred entries.

    As `du` counts: blocks on disk, a file with several names once, no other file system. What vanishes in the
    meantime is left out. Raise OSError when `top` itself cannot be read.
    """
    # Strategy: depth first with a stack of directories, in slices of entries after which the caller may pause. A file
    # with several names counts at the first one, as long as their inode numbers fit in memory; beyond that each name
    # counts as its part of the file, so that the sum stays right.
    first = top.stat()
    used, inodes = float(first.st_blocks * _BLOCK), 1.0
    linked: set[int] = set()
    # Directories still to be read: path, inode number, and how many of its entries have been counted.
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
                    # The rest comes when these have been read.
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
    """Return by how much what is below `top` is more than below `since`; otherwise as `walk`."""
    before = yield from walk(since)
    now = yield from walk(top)
    return Sum(max(0, now.used_bytes - before.used_bytes), max(0, now.inodes - before.inodes))


def _entries(directory: str, *, device: int, number: int) -> Generator[os.DirEntry[str], None, None]:
    """Yield what is in a directory, of which device and inode number were seen before.

    A container may have put a link into its place in the meantime, or into that of one above: nothing outside is read.
    """
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # vanished, or its path is longer than the kernel takes
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
    """CPU time that may be used: `share` of what passes, and at most `burst` seconds of it saved up."""

    def __init__(self, *, share: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._burst = burst
        self._clock = clock
        self._left = burst
        self._at = clock()

    def spend(self, seconds: float) -> float:
        """Take what was used; return how many seconds to wait before anything more is."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._share) - seconds
        self._at = now
        return max(0.0, -self._left / self._share)


class Parts(Protocol):
    """What else is to be measured, part by part, when it is its turn."""

    def next_part(self) -> tuple[str, Path] | None:
        """Return name and directory of the next part; None when there is none for now."""
        ...

    def note(self, name: str, total: Sum) -> None:
        """Take what was found; nothing for a part that could not be read."""
        ...


@dataclass(slots=True, eq=False)
class _Walk:
    name: str
    """Of the container or of the part, for logs and to find it again."""
    under_way: Generator[None, None, Sum]
    finish: Callable[["_Walk", Sum | None], None]
    """Takes what was found; None when the directory could not be read."""
    cost: float = 0.0
    """Seconds of CPU time so far."""


class LayerMeter:
    """Measures the layers of running containers, one after the other, from `start` to `stop`.

    A walk that takes long lets the others pass every few thousand entries, so that a container with a million files
    delays no other one's figure. A container that has just been started has its turn at once, also while the
    budget is being waited for: metrics that are asked for before lack its file system.
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
        """Measure the layers of `rt`, and `parts` one at a time beside them, from the same budget.

        `interval` is how many seconds may pass before new containers are noticed.

        `wait` lets seconds pass that the budget wants, or fewer when a container is started or the meter stopped.
        """
        self._rt = rt
        self._parts = parts
        self._budget = budget or Budget(share=SHARE, burst=_BURST)
        self._interval = interval
        self._walks: deque[_Walk] = deque()
        self._due: dict[str, float] = {}
        self._has_part = False
        """Whether one of the walks is of a part."""
        self._stopping = threading.Event()
        self._container_started = threading.Event()
        """Also set when the meter is stopped."""
        rt.stats_cache.on_container_started(self._container_started.set)
        self._wait = wait or self._container_started.wait
        self._scope = deadline.Scope()
        self._thread = threading.Thread(target=self._run, name="layers", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a walk under way is given up, and a disk that does not answer is not waited for."""
        self._stopping.set()
        self._scope.cancel()
        self._container_started.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            until = time.monotonic() + self._interval
            try:
                self._measure()
            except Exception:  # without this thread every layer would silently keep its last figure
                log.exception("failed to measure layers, will retry")
            if self._container_started.wait(max(0.0, until - time.monotonic())):
                self._container_started.clear()

    def _measure(self) -> None:
        """Begin to measure the layers that are due, and measure until the next interval."""
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
            if self._container_started.is_set():  # checked after the walk, so that each pass advances one
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
                # What has no figure at all goes first.
                begin = self._walks.append if key in self._due else self._walks.appendleft
                copy = image_copy(upper)
                measuring = walk(upper) if copy is None else growth(upper, since=copy)
                begin(_Walk(key, measuring, partial(self._finish_layer, upper)))
            # Unless set at its end, also when it fails or cannot be found.
            self._due[key] = now + PERIOD

    def _begin_part(self) -> None:
        if self._parts is None:
            return
        self._has_part = False  # also when the next one fails
        with deadline.entered(self._scope):
            part = self._parts.next_part()
        self._has_part = part is not None
        if part is not None:
            name, top = part
            self._walks.append(_Walk(name, walk(top), partial(self._finish_part, self._parts)))

    def _advance(self, turn: _Walk) -> None:
        """Advance one walk for its turn, or until a container is started; if not done, it goes behind the others."""
        for _ in range(_SLICES_PER_TURN):
            before = turn.cost
            more = self._slice(turn)
            # Also after the last slice: many small layers cost as much as a large one.
            pause = self._budget.spend(turn.cost - before)
            if pause:
                self._wait(pause)
            if not more:
                return
            if self._container_started.is_set():
                break
        self._walks.append(turn)

    def _slice(self, turn: _Walk) -> bool:
        """Advance one walk by a slice; return whether there is more of it."""
        began = time.thread_time()
        try:
            next(turn.under_way)
        except StopIteration as end:
            total: Sum | None = end.value
        except OSError as error:
            log.debug("failed to measure layer", layer=turn.name, error=error)
            total = None
        except Exception:  # a walk that does not finish would keep all further parts from being begun
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
