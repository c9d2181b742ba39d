"""One-time tokens in streaming URLs, and their tasks: exec, attach and port-forward.

An RPC requests a task and returns its URL. Anybody with the token may perform the task. So a token cannot be guessed,
works once, and expires.
"""

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from shim.domain.errors import ResourceExhausted
from shim.domain.ids import ContainerId, SandboxId

MAX_OUTSTANDING = 1000
"""Maximum unused tokens."""

MAX_OUTSTANDING_EACH = 100
"""Maximum unused tokens per container or pod, so that others can still get tokens."""

MAX_OUTSTANDING_BYTES = 16 << 20
"""Maximum bytes of commands and ports of all unused tokens. A single request may be as large as gRPC allows."""

LIFETIME = 60.0
"""Seconds until an unused token expires."""

_TOKEN_BYTES = 32


class Kind(StrEnum):
    """The kind of a task; the first part of the URL's path."""

    EXEC = "exec"
    ATTACH = "attach"
    PORT_FORWARD = "portforward"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTask:
    """Exec or attach: streams of a process in a container. Only an exec has a command."""

    kind: Kind
    container_id: ContainerId
    cmd: tuple[str, ...] = ()
    tty: bool
    stdin: bool
    stdout: bool
    stderr: bool

    @property
    def target(self) -> str:
        """Return the id that limits count by."""
        return self.container_id

    @property
    def size(self) -> int:
        """Return roughly how many bytes the task keeps."""
        return sum(len(word) * 4 + 64 for word in self.cmd)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortForwardTask:
    """Connections to ports of a pod."""

    kind: Kind = Kind.PORT_FORWARD
    sandbox_id: SandboxId
    ports: tuple[int, ...]
    """Ports for WebSocket channels. Over SPDY each stream names its port instead."""

    @property
    def target(self) -> str:
        """Return the id that limits count by."""
        return self.sandbox_id

    @property
    def size(self) -> int:
        """Return roughly how many bytes the task keeps."""
        return 40 * len(self.ports)


Task = RemoteTask | PortForwardTask


class Tokens:
    """The unused tokens and their tasks. Thread-safe."""

    def __init__(self, *, base_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`base_url` is the URL of the streaming server, without a trailing slash."""
        self._base_url = base_url
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Task, float]] = {}
        """Task and expiry time by token, oldest first."""
        self._each: Counter[str] = Counter()
        self._bytes = 0

    def url_of(self, task: Task) -> str:
        """Return a URL for `task`. Raise ResourceExhausted if there are too many unused tokens."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with self._lock:
            self._drop_expired()
            self._check_room(task)
            self._waiting[token] = task, self._clock() + LIFETIME
            self._each[task.target] += 1
            self._bytes += task.size
        return f"{self._base_url}/{task.kind}/{token}"

    def _check_room(self, task: Task) -> None:
        if len(self._waiting) >= MAX_OUTSTANDING:
            raise ResourceExhausted(f"{task.kind}: {MAX_OUTSTANDING} streaming requests wait for their clients")
        if self._each[task.target] >= MAX_OUTSTANDING_EACH:
            raise ResourceExhausted(
                f"{task.kind}: {MAX_OUTSTANDING_EACH} streaming requests for {task.target} wait for their clients"
            )
        if self._bytes + task.size > MAX_OUTSTANDING_BYTES:
            raise ResourceExhausted(
                f"{task.kind}: the commands of streaming requests that wait for their clients and this one have more "
                f"than {MAX_OUTSTANDING_BYTES} bytes"
            )

    def peek(self, kind: str, token: str) -> Task | None:
        """Return the task of a token as `take` does, but do not use it up."""
        with self._lock:
            self._drop_expired()
            found = self._waiting.get(token)
            return found[0] if found is not None and found[0].kind == kind else None

    def take(self, kind: str, token: str) -> Task | None:
        """Use up a token and return its task; None if the token is unknown, used, expired or of another kind."""
        with self._lock:
            self._drop_expired()
            found = self._waiting.get(token)
            if found is None or found[0].kind != kind:
                return None
            self._drop(token)
            return found[0]

    def _drop(self, token: str) -> None:
        task, _ = self._waiting.pop(token)
        self._bytes -= task.size
        self._each[task.target] -= 1
        if not self._each[task.target]:
            del self._each[task.target]

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._waiting:
            token = next(iter(self._waiting))
            if self._waiting[token][1] > now:
                return
            self._drop(token)
