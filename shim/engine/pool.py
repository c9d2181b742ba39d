"""Pools the connections to an Engine. Their number is unlimited; each has the API version of its daemon."""

import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from shim import __version__
from shim.base.deadline import Scope
from shim.domain.errors import FailedPrecondition
from shim.engine.bounds import ANSWER, TooLarge, Whole
from shim.engine.connection import ApiVersion, ConnectionLost, DockerConnection, connect, text_from_version
from shim.engine.failures import NOT_JSON, refusal_message

OLDEST: ApiVersion = (1, 41)
"""Engine 20.10."""
NEWEST: ApiVersion = (1, 51)
"""The newest version in the integration tests, which is also used with newer Engines."""

USER_AGENT = {"User-Agent": f"pydockershim/{__version__}"}

MAX_IDLE = 32
"""Idle connections that are kept. 500 concurrent calls open 500 connections, each with a goroutine in dockerd."""

IDLE_SECONDS = 60.0
"""How long an idle connection is kept. The last used connection is reused first, so the rest of a burst stays idle."""


_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


class _Version(msgspec.Struct, rename="pascal"):
    """The part of `GET /version` that the negotiation needs."""

    version: str = ""
    api_version: str = ""
    min_api_version: str = msgspec.field(default="", name="MinAPIVersion")


class Pool:
    """Connections to the Engine at a unix socket. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answered_at = -math.inf
        """When the last response was read completely, by the monotonic clock; -inf after a lost connection."""
        self._lock = threading.Lock()
        self._idle: list[DockerConnection] = []
        self._open = 0
        self._version: ApiVersion | None = None
        self._closed = False

    @contextmanager
    def lease(self, *, scope: Scope, outer: Scope) -> Iterator[DockerConnection]:
        """Lease a connection for a request, bound by `scope` and aborted when `outer` is cancelled."""
        connection = self.take(scope=scope, outer=outer)
        try:
            with outer.on_cancel(partial(connection.abort, connection.begin_use())):
                yield connection
        except ConnectionLost:
            if not outer.cancelled:
                self.forget()
            raise
        finally:
            connection.end_use()
            self.give_back(connection)

    def take(self, *, scope: Scope, outer: Scope) -> DockerConnection:
        """Return a connection for exclusive use until `give_back`. Bounds as for `lease`."""
        return self._take_idle() or self._connect(scope=scope, outer=outer)

    def _connect(self, *, scope: Scope, outer: Scope) -> DockerConnection:
        try:
            with outer.on_cancel(scope.cancel):
                connection = connect(self.path, scope=scope)
        except ConnectionLost:
            if not outer.cancelled:
                self.forget()
            raise
        with self._lock:
            self._open += 1
            # Without another open connection, a daemon of another version may have replaced the last.
            known = self._version if self._open > 1 else None
        try:
            with outer.on_cancel(partial(connection.abort, connection.begin_use())):
                connection.version = known or self._negotiate(connection, scope)
        except BaseException:
            self._end(connection)
            raise
        connection.end_use()
        return connection

    def give_back(self, connection: DockerConnection) -> None:
        """Put a connection back into the pool, or close it if it cannot serve another request."""
        now = time.monotonic()
        with self._lock:
            if connection.reusable and connection.was_asked:
                self.answered_at = now
            keep = connection.reusable and not self._closed and len(self._idle) < MAX_IDLE
            unneeded = [] if keep else [connection]
            if keep:
                connection.idle_since = now
                self._idle.append(connection)
                while self._idle[0].idle_since < connection.idle_since - IDLE_SECONDS:
                    unneeded.append(self._idle.pop(0))
        for each in unneeded:
            self._end(each)

    def row(self) -> dict[str, object]:
        """Return the numbers of connections, for people."""
        with self._lock:
            version = self._version
            return {
                "open": self._open,
                "idle": len(self._idle),
                "api_version": "" if version is None else text_from_version(version),
            }

    def forget(self) -> None:
        """Forget the negotiated version and close idle connections, since the daemon has restarted or gone."""
        with self._lock:
            self.answered_at = -math.inf
            self._version = None
            idle, self._idle = self._idle, []
        for connection in idle:
            self._end(connection)

    def close(self) -> None:
        """Close idle connections now, and busy connections when they come back. Idempotent."""
        with self._lock:
            self._closed = True
        self.forget()

    def _take_idle(self) -> DockerConnection | None:
        """Return an idle connection that can serve a request now; connections with an unfinished response stay idle."""
        draining = []
        try:
            while (connection := self._pop_idle()) is not None:
                if not connection.drain_abandoned():
                    draining.append(connection)
                elif connection.reusable and connection.alive():
                    return connection
                else:
                    self._end(connection)
                    self.forget()
            return None
        finally:
            self._put_below(draining)

    def _pop_idle(self) -> DockerConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _put_below(self, connections: list[DockerConnection]) -> None:
        with self._lock:
            refused = connections if self._closed else []
            self._idle[:0] = [] if self._closed else connections
        for connection in refused:
            self._end(connection)

    def _end(self, connection: DockerConnection) -> None:
        connection.close()
        with self._lock:
            self._open -= 1

    def _negotiate(self, connection: DockerConnection, scope: Scope) -> ApiVersion:
        """Read the API versions of the daemon and choose one. Raise ConnectionLost if it is not a Docker Engine."""
        head = connection.request("GET", "/version", scope=scope, headers=USER_AGENT)
        try:
            content = connection.read_all(scope, into=Whole(ANSWER))
        except TooLarge as cause:
            raise ConnectionLost(f"GET /version: not a Docker Engine: {cause}") from cause
        if head.status != 200:
            raise ConnectionLost(f"GET /version: {refusal_message(content)} (status {head.status})")
        try:
            answer = msgspec.json.decode(content, type=_Version)
        except NOT_JSON as cause:
            raise ConnectionLost(f"GET /version: not a Docker Engine: {cause}") from cause
        chosen = choose_version(answer.api_version, minimum=answer.min_api_version)
        with self._lock:
            self._version = chosen
        return chosen


def choose_version(newest: str, *, minimum: str) -> ApiVersion:
    """Return the API version to use with an Engine that supports `minimum` to `newest`.

    Raise FailedPrecondition without a common version.
    """
    theirs, least = _version_from_text(newest), _version_from_text(minimum or "1.12")
    if theirs < OLDEST:
        raise FailedPrecondition(
            f"the Docker Engine speaks API version {newest}, "
            f"at least {text_from_version(OLDEST)} (Engine 20.10) is needed"
        )
    if least > NEWEST:
        raise FailedPrecondition(
            f"the Docker Engine speaks no API version below {minimum} (its min-api-version), "
            f"this server speaks at most {text_from_version(NEWEST)}"
        )
    return min(theirs, NEWEST)


def _version_from_text(text: str) -> ApiVersion:
    version = _VERSION.fullmatch(text)
    if version is None:
        raise FailedPrecondition(f"the Docker Engine speaks API version {text[:40]!r}, which is not a version")
    return int(version[1]), int(version[2])
