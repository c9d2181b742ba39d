"""Stores the records of the view, the pending exits, and the age of each record.

All records enter through `put_locked`. `follow_log` requests that the container's log is followed or drained,
`visible_record` decides what clients may see, and `_show_locked` makes it visible and reports the change. All methods
are called under the lock of the view.
"""

import threading
from collections.abc import Callable
from types import MappingProxyType

from shim.logs.interface import Drains
from shim.view.in_flight_reads import InFlightReads, Moment
from shim.view.pending_exits import follow_log, visible_record
from shim.view.records import ContainerRecord, Record

OnChange = Callable[[Record | None, Record | None], None]
"""Called under the lock with the visible records before and after a change; None stands for no container."""


class RecordStore:
    """Records by container id. Callers hold the owner's lock."""

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
        """Latest records of exited containers that clients still see in an earlier state."""
        self._inspected: dict[str, Moment] = {}
        """When the inspect of the latest record began; absent if the record is not from an inspect."""
        self.version = 0
        """Changes with each change of the visible records."""

    def visible_locked(self, container_id: str) -> Record | None:
        """Return the record of a container as clients see it."""
        return self._visible.get(container_id)

    def latest_locked(self, container_id: str) -> Record | None:
        """Return the latest record of a container, whether it is visible or its exit is pending."""
        return self._pending_exits.get(container_id, self._visible.get(container_id))

    def names_locked(self, container_id: str) -> dict[str, str]:
        """Return the names of a container or pod for log lines: `pod`, and `name` for a container, where known."""
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
        """Return when the inspect of the latest record began; None if the record is not from an inspect."""
        return self._inspected.get(container_id)

    def has_pending_exit_locked(self, container_id: str) -> bool:
        """Return whether a container has exited and its exit is not visible yet."""
        return container_id in self._pending_exits

    def pending_exits_locked(self) -> list[str]:
        """Return the ids of all containers whose exit is pending."""
        return list(self._pending_exits)

    def put_locked(self, container_id: str, record: Record | None, *, inspected: Moment | None = None) -> None:
        """Store the latest record of a container, None for a removal, and show it to clients as far as allowed.

        Reads in flight are superseded, because they may be older than this record. An exit stays pending until the log
        is drained. A removal publishes a pending exit first, because its exit code is known.
        """
        self._reads.supersede(container_id)
        self._note_inspect_locked(container_id, None if record is None else inspected)
        drained = follow_log(record, self._logs)
        visible = visible_record(record, drained=drained, before=self._visible.get(container_id))
        if record is not None and visible is not record:
            self._pending_exits[container_id] = record
        elif record is None:
            self.publish_exit_locked(container_id)
        elif self._pending_exits.pop(container_id, None) is not None:
            self._changed.notify_all()
        self._show_locked(container_id, visible)

    def publish_exit_locked(self, container_id: str) -> None:
        """Make the pending exit of a container visible, if any."""
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
        """Make `record` visible and report the change, under the lock so that subscribers get changes in order."""
        before = self._visible.get(container_id)
        if record == before:
            return
        if record is None:
            del self._visible[container_id]
        else:
            self._visible[container_id] = record
        self.version += 1
        self._on_change(before, record)
