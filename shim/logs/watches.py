"""Which containers have written something: inotify watches of the directories Docker writes to."""

from dataclasses import dataclass
from pathlib import Path

from inotify_simple import INotify, flags  # type: ignore[import-untyped] # it ships no types

from shim.logs.formats import FORMATS
from shim.logs.protocol import Follow


@dataclass(frozen=True, slots=True)
class _Watch:
    number: int
    early: bool
    """The directory is not there yet: it is the one above it that is watched."""


class Watches:
    """Watches for containers, at most one for each."""

    def __init__(self) -> None:
        self._inotify = INotify()
        self._of: dict[str, _Watch] = {}
        self._containers: dict[int, str] = {}

    def fileno(self) -> int:
        """What to poll."""
        return int(self._inotify.fileno())

    def changed(self) -> list[str]:
        """Containers that have been told of since the last time; all of them when the kernel has lost count."""
        events = self._inotify.read(timeout=0)
        if any(event.mask & flags.Q_OVERFLOW for event in events):
            return list(self._of)
        return [self._containers[event.wd] for event in events if event.wd in self._containers]

    def ensure(self, order: Follow) -> None:
        """Watch the directory of Docker's file, or the one it will be made in. Raises OSError. Idempotent."""
        watch = self._of.get(order.id)
        if watch is not None and not watch.early:
            return
        directory = Path(order.docker).parent
        if watch is None and FORMATS[order.driver].made_at_start:
            self._put(order.id, directory.parent, early=True)
        try:
            self._put(order.id, directory, early=False)
        except FileNotFoundError:
            if order.id not in self._of:
                raise  # else its making will be told

    def remove(self, container_id: str) -> None:
        """Watch for this container no more. Idempotent."""
        watch = self._of.pop(container_id, None)
        if watch is None:
            return
        del self._containers[watch.number]
        try:
            self._inotify.rm_watch(watch.number)
        except OSError:
            return  # the kernel has removed it with the directory

    def close(self) -> None:
        """End all of it."""
        self._inotify.close()

    def _put(self, container_id: str, directory: Path, *, early: bool) -> None:
        number = self._watch(directory, flags.CREATE if early else flags.MODIFY)
        self.remove(container_id)
        self._of[container_id], self._containers[number] = _Watch(number, early), container_id

    def _watch(self, directory: Path, mask: int) -> int:
        try:
            return int(self._inotify.add_watch(directory, mask))
        except OSError as error:
            # The kernel says "no space left" for too many watches, too.
            raise OSError(error.errno, error.strerror, f"inotify watch of {directory}") from error
