"""What a streaming URL stands for: one task, asked for by an RPC, waiting for its client.

Whoever knows a token may do what the RPC asked for, so it cannot be guessed, works once, and not for long.
"""

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from shim.errors import ResourceExhausted
from shim.ids import ContainerId, SandboxId

MAX_OUTSTANDING = 1000
"""Tokens that wait for their client at a time."""

LIFETIME = 60.0
"""Seconds in which the client has to come."""

_TOKEN_BYTES = 32


class Kind(StrEnum):
    """The first part of a URL's path."""

    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portforward"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTask:
    """Streams of a process in a container: exec with a command, attach without."""

    kind: Kind
    container_id: ContainerId
    cmd: tuple[str, ...] = ()
    tty: bool
    stdin: bool
    stdout: bool
    stderr: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PortForwardTask:
    """Connections to ports of a pod."""

    kind: Kind = Kind.PORT_FORWARD
    sandbox_id: SandboxId
    ports: tuple[int, ...]
    """Only the WebSocket channels need to know them beforehand."""


Task = RemoteTask | PortForwardTask


class Sessions:
    """Tokens that were given out. Thread-safe."""

    def __init__(self, *, base_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`base_url` is where clients reach the streaming server, without a slash at its end."""
        self._base_url = base_url
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Task, float]] = {}
        """By token, oldest first: the task, and when the token ends."""

    def url_of(self, task: Task) -> str:
        """Give out a URL for `task`. ResourceExhausted when too many wait for their clients."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with self._lock:
            self._drop_expired()
            if len(self._waiting) >= MAX_OUTSTANDING:
                raise ResourceExhausted(f"{task.kind}: {MAX_OUTSTANDING} streaming requests wait for their clients")
            self._waiting[token] = task, self._clock() + LIFETIME
        return f"{self._base_url}/{task.kind}/{token}"

    def look(self, kind: str, token: str) -> Task | None:
        """Give the task of a token that can still be taken."""
        with self._lock:
            self._drop_expired()
            found = self._waiting.get(token)
            return found[0] if found is not None and found[0].kind == kind else None

    def take(self, kind: str, token: str) -> Task | None:
        """Take the task of a token, once; None for a token of another kind, used, expired, or never given out."""
        with self._lock:
            self._drop_expired()
            found = self._waiting.get(token)
            if found is None or found[0].kind != kind:
                return None
            del self._waiting[token]
            return found[0]

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._waiting:
            token = next(iter(self._waiting))
            if self._waiting[token][1] > now:
                return
            del self._waiting[token]
