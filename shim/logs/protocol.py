"""The protocol between the server and the log process: JSON messages as packets of a socket pair.

Each order has a ticket and gets exactly one answer with this ticket. The answer of a Drain may come much later. If the
process dies, the next process gets the unanswered orders again.
"""

import msgspec

from shim.config.model import DockerLogDriver

MAX_PACKET = 1 << 17
"""Maximum bytes of a packet, enough for two paths of PATH_MAX and all other fields."""


class Follow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Copy a container's output; answered once the CRI log exists."""

    id: str
    docker: str
    """Path of Docker's file, which may not exist yet."""
    driver: DockerLogDriver = "json-file"
    cri: str
    since: int = 0
    """When the container was created, ns since the epoch."""
    ended: bool = False
    """Whether the container exited before it was followed."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The container has exited: stop following it once all its output is written, and answer then."""

    id: str


class Reopen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Continue in a new file of the same name; answered once the file exists."""

    id: str


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The container was removed: copy all output that is still readable, then stop following it."""

    id: str


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Report the state of the log process."""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Liveness check, answered at once."""


Order = Follow | Drain | Reopen | Forget | Report | Ping


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A log that cannot be written and is retried."""

    id: str
    path: str
    error: str
    seconds: float
    """Time since the first failure."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """State of the log process."""

    followed: int
    lines: int
    """Lines written since the start of the process."""
    unreadable: int
    """Number of unreadable records in Docker's files."""
    behind_bytes: int
    """Bytes of Docker's files left to copy, including blocked logs."""
    blocked_logs: int
    """Number of logs that cannot be written now."""
    blocked: list[Blocked]
    """Some blocked logs: at most BLOCKED_SHOWN, and at most as many as fit in a packet."""


BLOCKED_SHOWN = 50


class Envelope(msgspec.Struct, frozen=True):
    """An order and its ticket."""

    ticket: int
    order: Order


NOT_FOLLOWED = "its output is not followed"
"""Error of a Reopen for a container that is not followed any more, because it has exited and its log is drained."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an order; `error` is empty if the order succeeded."""

    ticket: int
    error: str = ""
    figures: Figures | None = None
