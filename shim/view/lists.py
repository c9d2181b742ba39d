"""The records sorted out for readers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shim.domain.ids import SandboxId, only_id
from shim.view.records import ContainerRecord, Record, SandboxRecord


@dataclass(frozen=True, slots=True)
class Lists:
    """What lists answer from; made when the first reader asks after a change, and shared by all until the next."""

    sandboxes: tuple[SandboxRecord, ...]
    containers: tuple[ContainerRecord, ...]
    by_sandbox: dict[SandboxId, tuple[ContainerRecord, ...]]


def lists_from_records(records: Iterable[Record]) -> Lists:
    """Sort records out, each list in the order of `records`."""
    sandboxes: list[SandboxRecord] = []
    containers: list[ContainerRecord] = []
    by_sandbox: defaultdict[SandboxId, list[ContainerRecord]] = defaultdict(list)
    for record in records:
        if isinstance(record, SandboxRecord):
            sandboxes.append(record)
        else:
            containers.append(record)
            by_sandbox[record.sandbox_id].append(record)
    grouped = {sandbox_id: tuple(members) for sandbox_id, members in by_sandbox.items()}
    return Lists(tuple(sandboxes), tuple(containers), grouped)


def fitting_containers(
    records: Sequence[ContainerRecord], *, container_id: str, sandbox_id: str, selector: Mapping[str, str]
) -> Sequence[ContainerRecord]:
    """Give those that fit every part of a filter of the CRI; ids in it may be unique prefixes, empty ones fit all.

    InvalidArgument for an ambiguous one, as in every other RPC; an unknown one fits nothing.
    """
    if container_id:
        only = only_id(container_id, [record.id for record in records], field="filter.id")
        records = [record for record in records if record.id == only]
    if sandbox_id:
        only = only_id(sandbox_id, {record.sandbox_id for record in records}, field="filter.pod_sandbox_id")
        records = [record for record in records if record.sandbox_id == only]
    if wanted := selector.items():
        records = [record for record in records if wanted <= record.config.labels.items()]
    return records


def fitting_sandboxes(
    records: Sequence[SandboxRecord], *, sandbox_id: str, selector: Mapping[str, str]
) -> Sequence[SandboxRecord]:
    """Give those that fit every part of a filter of the CRI, as `fitting_containers` does."""
    if sandbox_id:
        only = only_id(sandbox_id, [record.id for record in records], field="filter.id")
        records = [record for record in records if record.id == only]
    if wanted := selector.items():
        records = [record for record in records if wanted <= record.config.labels.items()]
    return records
