"""The reads of the view: all pods and containers, a single pod or container by id, and filters."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shim.domain.errors import InvalidArgument, NotFound
from shim.domain.ids import SandboxId, match_id
from shim.view.availability import Availability
from shim.view.records import ContainerRecord, Record, SandboxRecord
from shim.view.store import RecordStore

R = TypeVar("R", SandboxRecord, ContainerRecord)
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Lists:
    """The records by kind, sandbox and pod. The first read after a change builds them; later reads share them."""

    sandboxes: tuple[SandboxRecord, ...]
    containers: tuple[ContainerRecord, ...]
    by_sandbox: dict[SandboxId, tuple[ContainerRecord, ...]]
    by_pod_uid: dict[str, tuple[SandboxRecord, ...]]
    """All sandboxes of each pod uid; all sandboxes without a uid are under ""."""


class Queries:
    """The reads of a view. Thread-safe; each raises Unavailable with the cause while the view is not synced."""

    def __init__(self, store: RecordStore, *, availability: Availability, lock: threading.Condition) -> None:
        """`lock` guards the store and its availability."""
        self._store = store
        self._availability = availability
        self._lock = lock
        self._lists: tuple[int, Lists] | None = None
        """The version of the store, and the lists built from it."""

    def lists(self) -> Lists:
        """Return all records."""
        with self._lock:
            self._availability.wait_available()
            return self.lists_locked()

    def lists_locked(self) -> Lists:
        """Return all records known now, synced or not. The caller holds the lock."""
        if self._lists is None or self._lists[0] != self._store.version:
            self._lists = self._store.version, lists_from_records(self._store.records_locked().values())
        return self._lists[1]

    def sandbox(self, id_or_prefix: str) -> SandboxRecord:
        """Return the sandbox with this id or unique id prefix.

        Raise NotFound if there is none, InvalidArgument for an ambiguous or empty id.
        """
        return self._find(id_or_prefix, kind=SandboxRecord, select=lambda lists: lists.sandboxes, what="pod sandbox")

    def container(self, id_or_prefix: str) -> ContainerRecord:
        """Return the container with this id or unique id prefix; errors as for `sandbox`."""
        return self._find(id_or_prefix, kind=ContainerRecord, select=lambda lists: lists.containers, what="container")

    def _find(self, wanted: str, *, kind: type[R], select: Callable[[Lists], tuple[R, ...]], what: str) -> R:
        if not wanted:
            raise InvalidArgument(f"{what} id is empty")
        with self._lock:
            self._availability.wait_available()
            exact = self._store.visible_locked(wanted)
            if isinstance(exact, kind):
                return exact
            lists = self.lists_locked()
        known: dict[str, R] = {record.id: record for record in select(lists)}
        only = match_id(wanted, known, field=f"{what} id")
        if only is None:
            raise NotFound(f"no {what} has the id {wanted}")
        return known[only]


def filter_containers(
    records: Sequence[ContainerRecord], *, container_id: str, sandbox_id: str, selector: Mapping[str, str]
) -> Sequence[ContainerRecord]:
    """Return the containers that match all parts of a CRI filter.

    An id may be a unique prefix. An empty id matches all containers, an unknown id none. Raise InvalidArgument for an
    ambiguous id.
    """
    if container_id:
        only = match_id(container_id, [record.id for record in records], field="filter.id")
        records = [record for record in records if record.id == only]
    if sandbox_id:
        only = match_id(sandbox_id, {record.sandbox_id for record in records}, field="filter.pod_sandbox_id")
        records = [record for record in records if record.sandbox_id == only]
    if wanted := selector.items():
        records = [record for record in records if wanted <= record.config.labels.items()]
    return records


def filter_sandboxes(
    records: Sequence[SandboxRecord], *, sandbox_id: str, selector: Mapping[str, str]
) -> Sequence[SandboxRecord]:
    """Return the sandboxes that match all parts of a CRI filter, as `filter_containers` does."""
    if sandbox_id:
        only = match_id(sandbox_id, [record.id for record in records], field="filter.id")
        records = [record for record in records if record.id == only]
    if wanted := selector.items():
        records = [record for record in records if wanted <= record.config.labels.items()]
    return records


def lists_from_records(records: Iterable[Record]) -> Lists:
    """Sort records by kind, each list in the order of `records`."""
    sandboxes: list[SandboxRecord] = []
    containers: list[ContainerRecord] = []
    by_sandbox: defaultdict[SandboxId, list[ContainerRecord]] = defaultdict(list)
    by_pod_uid: defaultdict[str, list[SandboxRecord]] = defaultdict(list)
    for record in records:
        if isinstance(record, SandboxRecord):
            sandboxes.append(record)
            by_pod_uid[record.config.metadata.uid].append(record)
        else:
            containers.append(record)
            by_sandbox[record.sandbox_id].append(record)
    return Lists(tuple(sandboxes), tuple(containers), _grouped(by_sandbox), _grouped(by_pod_uid))


def _grouped(groups: Mapping[K, Sequence[V]]) -> dict[K, tuple[V, ...]]:
    return {key: tuple(members) for key, members in groups.items()}
