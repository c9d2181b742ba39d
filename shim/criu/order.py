"""What the program is told of one checkpoint, and what it answers: a line of JSON each."""

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One checkpoint. Paths are absolute."""

    container: str
    """Its id."""
    runc: str
    state_root: str
    """Directory of runc's states, its option `--root`."""
    path: str
    """The search path for criu and what it runs."""
    work: str
    """A directory that does not exist, whose parent may not either. It is gone in the end."""
    location: str
    """The archive, which does not exist."""
    upper: str
    """Directory in which overlayfs keeps what the container has changed."""
    log: str
    """Its log; empty for none."""
    documents: dict[str, str]
    """Content of files of the archive by name."""

    def encoded(self) -> bytes:
        """Return the line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def decoded(line: bytes) -> Order:
    """Return the order of a line."""
    return Order(**json.loads(line))


NO_CRIU = "no criu"
"""There is no criu, or this kernel does not suit it."""
EXISTS = "exists"
"""The archive is there already."""
NOT_POSSIBLE = "not possible"
"""The container, or the directory of the archive, does not allow it."""
NO_SPACE = "no space"
"""The bound of an archive, or the disk, is too small."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a checkpoint."""

    failure: str = ""
    """One of those above; empty when the archive is complete."""
    text: str = ""

    def encoded(self) -> bytes:
        """Return the line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def answered(line: bytes) -> Answer:
    """Return the answer of a line. ValueError, TypeError."""
    return Answer(**json.loads(line))
