"""The orders of the program `worker`, and its answer: a line of JSON each."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A running container that is to be checkpointed. Paths are absolute."""

    container: str
    """Its id."""
    pid: int
    """Its first process."""
    shared_pids: int
    """The first process of a pid namespace that it shares with its pod; 0 where it has its own."""
    runc: str
    state_root: str
    """Directory of runc's states, its option `--root`."""
    upper: str
    """Directory where overlayfs keeps the container's changes."""
    log: str
    """Its log; empty for none."""
    documents: dict[str, str]
    """Content of files of the checkpoint by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOrder:
    """Write the checkpoint of one container to an archive."""

    source: Source
    path: str
    """The search path for criu and the programs that criu runs."""
    work: str
    """A directory that does not exist, whose parent may not either. It is gone in the end."""
    location: str
    """The archive, which does not exist."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the containers."""
        return (self.source,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """Write the checkpoints of containers, all of one moment, to a directory (`shim.criu.layout`)."""

    sources: tuple[Source, ...]
    path: str
    work: str
    """See ContainerOrder."""
    directory: str
    """It exists and is empty. It is empty again after a failure."""
    documents: tuple[dict[str, Any], ...]
    """For each container, its entry of the manifest but for its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOrder:
    """Check the checkpoint of a pod, and copy it to where nobody else changes it."""

    directory: str
    path: str
    """See ContainerOrder."""
    target: str
    """A directory that does not exist, whose parent may not either. It is gone after a failure."""
    refuse_connections: bool
    """Refuse a checkpoint with established TCP connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """Dump a process that does nothing, to learn whether criu works on this kernel."""

    path: str
    work: str
    """See ContainerOrder."""


Order = ContainerOrder | PodOrder | TakeOrder | TrialOrder

_KINDS = {kind.__name__: kind for kind in (ContainerOrder, PodOrder, TakeOrder, TrialOrder)}


def encoded(order: Order) -> bytes:
    """Return the line of an order."""
    return json.dumps({"kind": type(order).__name__, "order": asdict(order)}).encode() + b"\n"


def decoded(line: bytes) -> Order:
    """Return the order of a line. ValueError, TypeError, KeyError."""
    plain = json.loads(line)
    fields = plain["order"]
    if "source" in fields:
        fields["source"] = Source(**fields["source"])
    if "sources" in fields:
        fields["sources"] = tuple(Source(**each) for each in fields["sources"])
        fields["documents"] = tuple(fields["documents"])
    order: Order = _KINDS[plain["kind"]](**fields)
    return order


NO_CRIU = "no criu"
"""There is no criu, or this kernel does not suit it."""
EXISTS = "exists"
"""The archive is there already."""
NOT_POSSIBLE = "not possible"
"""The container, the checkpoint or the directory does not allow it."""
NO_SPACE = "no space"
"""The bound of a checkpoint, or the disk, is too small."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an order."""

    failure: str = ""
    """One of those above; empty when everything was done."""
    text: str = ""

    def encoded(self) -> bytes:
        """Return the line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def answered(line: bytes) -> Answer:
    """Return the answer of a line. ValueError, TypeError."""
    return Answer(**json.loads(line))
