"""The protocol of the server and the log process: one JSON message in each packet of a socket pair.

Each order has a ticket and is answered once under it; of a Drain that may be long after. Orders may be repeated:
the successor of a process that died gets those again that had no answer.
"""

import msgspec

from shim.config.model import DockerLogDriver

MAX_PACKET = 1 << 17
"""Bytes; two paths of the kernel's length and the rest fit in."""


class Follow(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Copy a container's output; answered once the CRI log exists."""

    id: str
    docker: str
    """Docker's file; need not exist yet."""
    driver: DockerLogDriver = "json-file"
    cri: str
    since: int = 0
    """When the container was created, ns since the epoch."""
    ended: bool = False
    """It ended before it was followed."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The container has ended: answered once all its output is written; then it is no longer followed."""

    id: str


class Reopen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Continue in a new file of the same name; answered once that exists."""

    id: str


class Forget(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The container is gone: copy what can still be read, then stop following it."""

    id: str


class Report(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Report the state of the log process."""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Liveness check, answered at once."""


Order = Follow | Drain | Reopen | Forget | Report | Ping


class Blocked(msgspec.Struct, frozen=True, kw_only=True):
    """A log that cannot be written now and is retried."""

    id: str
    path: str
    error: str
    seconds: float
    """Since when."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """State of the log process."""

    followed: int
    lines: int
    """Written since its start."""
    unreadable: int
    """Lines of Docker's that could not be read."""
    behind_bytes: int
    """Left to be copied in Docker's files, those of blocked logs included."""
    blocked_logs: int
    """How many logs cannot be written now."""
    blocked: list[Blocked]
    """Some of these: at most BLOCKED_SHOWN, and as many as a packet holds."""


BLOCKED_SHOWN = 50


class Envelope(msgspec.Struct, frozen=True):
    """An order and its ticket, as sent."""

    ticket: int
    order: Order


NOT_FOLLOWED = "its output is not followed"
"""Error of a Reopen for a container that has ended meanwhile, and whose output is all written."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an order; `error` is empty when it succeeded."""

    ticket: int
    error: str = ""
    figures: Figures | None = None
