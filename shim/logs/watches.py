"""Watches Docker's log directories with inotify, to find the containers with new output."""

from dataclasses import dataclass
from pathlib import Path

import structlog
from inotify_simple import INotify, flags  # type: ignore[import-untyped] # it ships no types

from shim.logs.drivers import FORMATS
from shim.logs.protocol import Follow

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Watch:
    number: int
    early: bool
    """Whether the parent is watched instead, because the directory does not exist yet."""


class Watches:
    """The watches, at most one per container.

    The kernel limits the inotify instances and watches of a user, and other programs may use them up. A container
    without a watch is polled instead.
    """

    def __init__(self) -> None:
        self._inotify: INotify | None = None
        self._refusal = OSError()
        """The error if there is no inotify instance."""
        try:
            self._inotify = INotify()
        except OSError as error:
            self._refusal = error
        self.unwatched: dict[str, None] = {}
        """Containers without a watch, which the caller must poll."""
        self._watch_of: dict[str, _Watch] = {}
        self._containers: dict[int, str] = {}

    def fileno(self) -> int:
        """Return the descriptor to poll; -1 if there is no inotify instance."""
        return -1 if self._inotify is None else int(self._inotify.fileno())

    def changed(self) -> list[str]:
        """Return the containers with events since the last call; all containers after an overflow of the queue."""
        events = [] if self._inotify is None else self._inotify.read(timeout=0)
        if any(event.mask & flags.Q_OVERFLOW for event in events):
            return list(self._watch_of)
        return [self._containers[event.wd] for event in events if event.wd in self._containers]

    def ensure(self, order: Follow) -> None:
        """Watch the directory of Docker's file, or its parent if the directory does not exist yet. Idempotent.

        Raise FileNotFoundError if neither exists. If no watch is available, add the container to `unwatched` until a
        later call gets a watch.
        """
        watch = self._watch_of.get(order.id)
        if watch is not None and not watch.early:
            return
        try:
            self._ensure(order)
        except FileNotFoundError:
            if order.id not in self.unwatched:
                raise  # an unwatched container's directory existed before, so its open files are still readable
        except OSError as error:
            if not self.unwatched:  # logged once for all containers and retries
                log.warning("no inotify watch available, polling container output", error=error)
            self.unwatched[order.id] = None

    def _ensure(self, order: Follow) -> None:
        directory = Path(order.docker).parent
        if order.id not in self._watch_of and FORMATS[order.driver].made_at_start:
            self._put(order.id, directory.parent, early=True)
        try:
            self._put(order.id, directory, early=False)
        except FileNotFoundError:
            if order.id not in self._watch_of:
                raise  # with a watch of the parent, the creation of the directory causes an event

    def remove(self, container_id: str) -> None:
        """Remove the watch of a container. Idempotent."""
        self.unwatched.pop(container_id, None)
        watch = self._watch_of.pop(container_id, None)
        if watch is None or self._inotify is None:
            return
        del self._containers[watch.number]
        try:
            self._inotify.rm_watch(watch.number)
        except OSError:
            return  # the kernel has removed the watch together with the directory

    def close(self) -> None:
        """Close the inotify instance."""
        if self._inotify is not None:
            self._inotify.close()

    def _put(self, container_id: str, directory: Path, *, early: bool) -> None:
        number = self._watch(directory, flags.CREATE if early else flags.MODIFY)
        self.remove(container_id)
        self._watch_of[container_id], self._containers[number] = _Watch(number, early), container_id

    def _watch(self, directory: Path, mask: int) -> int:
        if self._inotify is None:
            directory.stat()
            raise self._refusal
        try:
            return int(self._inotify.add_watch(directory, mask))
        except OSError as error:
            # ENOSPC also means too many watches, so the error must name the watch.
            raise OSError(error.errno, error.strerror, f"inotify watch of {directory}") from error
