"""What plugins have been told, so that nothing is told twice. Guarded by `Plugins.turn`."""

from collections.abc import Iterable


class Told:
    """The containers that run, and what has been removed, as far as plugins know."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._removed: set[str] = set()

    def reset(self, *, running: Iterable[str]) -> None:
        """Begin anew with the first plugin, which is told that these containers run."""
        self._running = set(running)
        self._removed.clear()

    def started(self, container_id: str) -> None:
        """Record the start of a container."""
        self._running.add(container_id)

    def stopped(self, container_id: str) -> bool:
        """Record the end of a container; return whether it was running."""
        was_running = container_id in self._running
        self._running.discard(container_id)
        return was_running

    def removed(self, object_id: str) -> bool:
        """Record the removal of a container or pod sandbox; return whether that is new."""
        is_new = object_id not in self._removed
        self._removed.add(object_id)
        return is_new

    def is_removed(self, object_id: str) -> bool:
        """Return whether a removal has been recorded."""
        return object_id in self._removed

    def forget(self, object_id: str) -> None:
        """Forget a removal: the object is gone, or is there all the same."""
        self._removed.discard(object_id)

    def running(self) -> frozenset[str]:
        """Return the containers that run."""
        return frozenset(self._running)
