"""The protocol of the program `shim.criu.worker`: one line of JSON with the order, one with the answer."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A running container to checkpoint. Paths are absolute."""

    container: str
    """The container's id."""
    pid: int
    """Pid of its first process."""
    shared_pids: int
    """Pid of the first process in the pid namespace shared with the pod; 0 if the container has its own namespace."""
    runc: str
    state_root: str
    """Directory of runc's states (`runc --root`)."""
    upper: str
    """Directory where overlayfs keeps the container's changes."""
    log: str
    """Path of the container's log; empty if it has none."""
    documents: dict[str, str]
    """Files to add to the checkpoint: content by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOrder:
    """Write the checkpoint of one container to an archive."""

    source: Source
    path: str
    """Search path for criu and for programs that criu runs."""
    work: str
    """Path of a directory that the program creates, with missing parents, and removes at the end."""
    location: str
    """Path of the archive, which must not exist yet."""

    @property
    def sources(self) -> tuple[Source, ...]:
        """The container, as in PodOrder."""
        return (self.source,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOrder:
    """Write a consistent checkpoint of several containers to a directory (`shim.criu.layout`)."""

    sources: tuple[Source, ...]
    path: str
    work: str
    """See ContainerOrder."""
    directory: str
    """An existing empty directory. The program empties it again after a failure."""
    documents: tuple[dict[str, Any], ...]
    """Each container's entry in the manifest, without its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOrder:
    """Check the checkpoint of a pod, and copy it to a private directory."""

    directory: str
    path: str
    """See ContainerOrder."""
    target: str
    """Path of a directory that the program creates, with missing parents, and removes after a failure."""
    refuse_connections: bool
    """Refuse a checkpoint with established TCP connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """Dump an idle process to test whether criu works on this kernel."""

    path: str
    work: str
    """See ContainerOrder."""


Order = ContainerOrder | PodOrder | TakeOrder | TrialOrder

_KINDS = {kind.__name__: kind for kind in (ContainerOrder, PodOrder, TakeOrder, TrialOrder)}


def encoded(order: Order) -> bytes:
    """Return an order as a line."""
    return json.dumps({"kind": type(order).__name__, "order": asdict(order)}).encode() + b"\n"


def decoded(line: bytes) -> Order:
    """Parse the line of an order. Raise ValueError, TypeError or KeyError."""
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
"""criu is missing or does not work on this kernel."""
EXISTS = "exists"
"""The archive already exists."""
NOT_POSSIBLE = "not possible"
"""The container, the checkpoint or the directory does not allow the order."""
NO_SPACE = "no space"
"""The checkpoint exceeds its limit, or the disk is full."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an order."""

    failure: str = ""
    """NO_CRIU, EXISTS, NOT_POSSIBLE or NO_SPACE; empty for success."""
    text: str = ""

    def encoded(self) -> bytes:
        """Return the answer as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def answered(line: bytes) -> Answer:
    """Parse the line of an answer. Raise ValueError or TypeError."""
    return Answer(**json.loads(line))
