"""Inspects containers and publishes the answers in the view.

`Inspector.refresh` inspects a container, and `_publish` discards a superseded answer. `RecordStore.put_locked` stores
the record and decides what clients see. Docker is never called under the lock.
"""

import threading
from collections.abc import Callable

import structlog

from shim.domain.errors import Cancelled, NotFound, ShimError, Unavailable
from shim.engine.answers import ContainerInspect
from shim.engine.interface import Engine
from shim.logs.interface import Drains
from shim.view import translate
from shim.view.changes import STOPPED, steps
from shim.view.in_flight_reads import InFlightReads, Moment, Read
from shim.view.oom_kills import KernelKills, with_oom_kill
from shim.view.pending_exits import with_log_path
from shim.view.records import ContainerRecord, Record
from shim.view.store import RecordStore

Fallback = Callable[[Record | None], Record | None]
"""Returns the record of a container that cannot be inspected, given its latest record."""

log = structlog.get_logger(__name__)


class Inspector:
    """Inspects containers and publishes the results. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        store: RecordStore,
        *,
        lock: threading.Condition,
        reads: InFlightReads,
        logs: Drains,
        kills: KernelKills,
        docker_root: Callable[[], str] | None,
    ) -> None:
        """Create an inspector; `lock` guards the store and `reads`.

        `docker_root` returns Docker's data root; None to get it from the Engine each time.
        """
        self._engine = engine
        self._store = store
        self._lock = lock
        self._reads = reads
        self._logs = logs
        self._kills = kills
        self._docker_root = docker_root or (lambda: engine.info().docker_root_dir)

    def refresh(self, container_id: str, *, fallback: Fallback | None = None) -> Record | None:
        """Inspect a container, by its full id, and publish the result; return None if it is gone or not in a pod.

        Raise the other errors of the inspect. The record then stays as it is, unless only this inspect fails while
        Docker is available: then the result of `fallback` is published.

        A superseded answer may be older than the record. So the inspect is repeated until its answer is not superseded.
        """
        while True:
            with self._reads.reading(container_id, lock=self._lock) as read:
                try:
                    inspect = self._inspect(container_id)
                except NotFound:
                    self.forget(container_id)
                    return None
                except ShimError as error:
                    if fallback is not None and not isinstance(error, (Unavailable, Cancelled)):
                        self._publish(container_id, fallback(self._latest(container_id)), read=read)
                    raise
                previous = self._latest(container_id)
                inspect = with_oom_kill(inspect, previous=previous, kills=self._kills)
                record = translate.record_from_inspect(inspect, previous=previous)
                if self._publish(container_id, record, read=read, inspected=read.began):
                    return record

    def forget(self, container_id: str) -> None:
        """Remove the record of a container that is gone. Idempotent; Docker never uses an id twice."""
        with self._lock:
            self._store.put_locked(container_id, None)
        self._logs.forget(container_id)

    def _inspect(self, container_id: str) -> ContainerInspect:
        return with_log_path(self._engine.inspect_container(container_id), root=self._docker_root)

    def _latest(self, container_id: str) -> Record | None:
        with self._lock:
            return self._store.latest_locked(container_id)

    def _publish(
        self, container_id: str, record: Record | None, *, read: Read, inspected: Moment | None = None
    ) -> bool:
        """Publish the record from a read and return True; return False if the read was superseded.

        A superseded record that equals the latest record counts as published.
        """
        with self._lock:
            before = self._store.latest_locked(container_id)
            if read.superseded and record != before:
                return False
            self._store.put_locked(container_id, record, inspected=inspected)
            names = self._store.names_locked(container_id)
        if before is not None and record is not None and STOPPED in steps(before, record):
            _log_exit(record, names)
        return True


def _log_exit(record: Record, names: dict[str, str]) -> None:
    end = {**names, "exit_code": record.state.exit_code, "reason": record.state.reason}
    if isinstance(record, ContainerRecord):
        log.info("container ended", container=record.id, **end)
    else:
        log.info("pod sandbox ended", sandbox=record.id, **end)
