"""Records the events that plugins have received, so that no event is sent twice. Guarded by `Plugins.turn`."""

from collections.abc import Iterable


class Notified:
    """The running containers and the removed objects that plugins know of."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._removed: set[str] = set()

    def reset(self, *, running: Iterable[str]) -> None:
        """Start over when the first plugin registers. Synchronize reports these containers as running."""
        self._running = set(running)
        self._removed.clear()

    def note_started(self, container_id: str) -> None:
        """Record the start of a container."""
        self._running.add(container_id)

    def note_stopped(self, container_id: str) -> bool:
        """Record the end of a container; return whether it was running."""
        was_running = container_id in self._running
        self._running.discard(container_id)
        return was_running

    def note_removed(self, object_id: str) -> bool:
        """Record the removal of a container or pod sandbox; return whether that is new."""
        is_new = object_id not in self._removed
        self._removed.add(object_id)
        return is_new

    def is_removed(self, object_id: str) -> bool:
        """Return whether a removal has been recorded."""
        return object_id in self._removed

    def forget(self, object_id: str) -> None:
        """Forget a removal, because the object is gone from Docker too, or exists after all."""
        self._removed.discard(object_id)

    def running(self) -> frozenset[str]:
        """Return the running containers."""
        return frozenset(self._running)
