"""The records of the view, the exits that are not published yet, and how new each record is.

A record takes one way in: `put_locked` makes it the latest one, `visible_record` decides what of it clients may see,
and `_show_locked` makes that visible and reports the change. Every method is called under the lock of the view.
"""

import threading
from collections.abc import Callable
from types import MappingProxyType

from shim.logs.interface import Drains
from shim.view.in_flight_reads import InFlightReads, Moment
from shim.view.pending_exits import visible_record
from shim.view.records import ContainerRecord, Record

OnChange = Callable[[Record | None, Record | None], None]
"""Called under the lock with the visible record before and after a change; None if there is no container."""


class RecordStore:
    """Records by container id. Guarded by the lock of its owner, which must be held."""

    def __init__(
        self, *, changed: threading.Condition, reads: InFlightReads, logs: Drains, on_change: OnChange
    ) -> None:
        """Create an empty store; `changed` is the owner's lock, notified when an exit is no longer pending."""
        self._changed = changed
        self._reads = reads
        self._logs = logs
        self._on_change = on_change
        self._visible: dict[str, Record] = {}
        self._pending_exits: dict[str, Record] = {}
        """Latest records of containers that have exited and are visible in an earlier state."""
        self._inspected: dict[str, Moment] = {}
        """When the inspect began that the latest record is from; absent if it is from anything else."""
        self.version = 0
        """Differs after each change of what is visible."""

    def visible_locked(self, container_id: str) -> Record | None:
        """Return the record of a container as clients see it."""
        return self._visible.get(container_id)

    def latest_locked(self, container_id: str) -> Record | None:
        """Return the latest record of a container, whether it is visible or its exit is pending."""
        return self._pending_exits.get(container_id, self._visible.get(container_id))

    def names_locked(self, container_id: str) -> dict[str, str]:
        """Return what lines of the log call a container or pod: `pod`, and for a container `name`, if it is known."""
        record = self.latest_locked(container_id)
        if isinstance(record, ContainerRecord):
            return {"name": record.config.metadata.name, **self.names_locked(record.sandbox_id)}
        if record is None:
            return {}
        return {"pod": f"{record.config.metadata.namespace}/{record.config.metadata.name}"}

    def records_locked(self) -> MappingProxyType[str, Record]:
        """Return all visible records by id, as a view that changes with the store."""
        return MappingProxyType(self._visible)

    def inspected_locked(self, container_id: str) -> Moment | None:
        """Return when the inspect began that the latest record is from; None if it is not from an inspect."""
        return self._inspected.get(container_id)

    def has_pending_exit_locked(self, container_id: str) -> bool:
        """Whether a container has exited and its exit is not visible yet."""
        return container_id in self._pending_exits

    def pending_exits_locked(self) -> list[str]:
        """Return the ids of all containers whose exit is pending."""
        return list(self._pending_exits)

    def put_locked(self, container_id: str, record: Record | None, *, inspected: Moment | None = None) -> None:
        """Make `record` the latest one of a container, and visible as far as it may be; None for a removal.

        Strategy: reads in flight began before this record, so they are superseded first. If all of the record may be
        visible, no exit is pending any more; a removal publishes a pending exit before itself, since how the container
        ended is known. Otherwise the record is kept as a pending exit until its log is drained.
        """
        self._reads.supersede(container_id)
        self._note_inspect_locked(container_id, None if record is None else inspected)
        visible = visible_record(record, self._logs, before=self._visible.get(container_id))
        if record is not None and visible is not record:
            self._pending_exits[container_id] = record
        elif record is None:
            self.publish_exit_locked(container_id)
        elif self._pending_exits.pop(container_id, None) is not None:
            self._changed.notify_all()
        self._show_locked(container_id, visible)

    def publish_exit_locked(self, container_id: str) -> None:
        """Make a pending exit visible, if there is one."""
        exited = self._pending_exits.pop(container_id, None)
        if exited is not None:
            self._show_locked(container_id, exited)
            self._changed.notify_all()

    def _note_inspect_locked(self, container_id: str, inspected: Moment | None) -> None:
        if inspected is None:
            self._inspected.pop(container_id, None)
        else:
            self._inspected[container_id] = inspected

    def _show_locked(self, container_id: str, record: Record | None) -> None:
        """Make `record` visible, and report the change under the lock, so that subscribers get changes in order."""
        before = self._visible.get(container_id)
        if record == before:
            return
        if record is None:
            del self._visible[container_id]
        else:
            self._visible[container_id] = record
        self.version += 1
        self._on_change(before, record)
