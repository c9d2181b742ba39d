"""The records sorted out for readers."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from shim.ids import SandboxId
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
