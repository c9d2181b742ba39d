"""The connections to one Engine: reused, never limited in number, each with the API version of its daemon."""

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
"""The newest version the integration tests run against; newer Engines are spoken to in this one."""

USER_AGENT = {"User-Agent": f"pydockershim/{__version__}"}

MAX_IDLE = 32
"""Idle connections kept. 500 calls at once open 500, but their goroutines in dockerd need not stay for ever."""

IDLE_SECONDS = 60.0
"""How long an unused connection is kept. The last one used is reused first, so those of a burst become unused."""


_VERSION = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


class _Version(msgspec.Struct, rename="pascal"):
    """The part of `GET /version` that the choice of a version needs."""

    version: str = ""
    api_version: str = ""
    min_api_version: str = msgspec.field(default="", name="MinAPIVersion")


class Pool:
    """Connections to the Engine at a unix socket. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answered_at = -math.inf
        """When the last response was read to its end, by the monotonic clock."""
        self._lock = threading.Lock()
        self._idle: list[DockerConnection] = []
        self._open = 0
        self._version: ApiVersion | None = None
        self._closed = False

    @contextmanager
    def lease(self, *, scope: Scope, outer: Scope) -> Iterator[DockerConnection]:
        """Lease a connection for one request, bound by `scope` and aborted when `outer` is cancelled."""
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
        with outer.on_cancel(scope.cancel):
            connection = connect(self.path, scope=scope)
        with self._lock:
            self._open += 1
            # Without another open connection the daemon may have been replaced by one of another version.
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
        """Return a connection to the pool, or close it if it cannot serve another request."""
        now = time.monotonic()
        with self._lock:
            if connection.reusable:
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
        """Return how many connections there are, for people."""
        with self._lock:
            version = self._version
            return {
                "open": self._open,
                "idle": len(self._idle),
                "api_version": "" if version is None else text_from_version(version),
            }

    def forget(self) -> None:
        """Forget the negotiated version and close idle connections: the daemon has restarted or gone."""
        with self._lock:
            self._version = None
            idle, self._idle = self._idle, []
        for connection in idle:
            self._end(connection)

    def close(self) -> None:
        """Close all idle connections, and the others as they come back. Idempotent."""
        with self._lock:
            self._closed = True
        self.forget()

    def _take_idle(self) -> DockerConnection | None:
        """Return an idle connection that can serve a request now. Those with an unfinished response stay."""
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
        """Read the API versions of the daemon and choose one. Raise ConnectionLost for what is no Docker Engine."""
        head = connection.request("GET", "/version", scope=scope, headers=USER_AGENT)
        try:
            content = connection.read_all(scope, into=Whole(ANSWER))
        except TooLarge as cause:
            raise ConnectionLost(f"its version was asked for, not a docker engine: {cause}") from cause
        if head.status != 200:
            raise ConnectionLost(f"its version was asked for: {refusal_message(content)} (status {head.status})")
        try:
            answer = msgspec.json.decode(content, type=_Version)
        except NOT_JSON as cause:
            raise ConnectionLost(f"its version was asked for, not a docker engine: {cause}") from cause
        chosen = choose_version(answer.api_version, minimum=answer.min_api_version)
        with self._lock:
            self._version = chosen
        return chosen


def choose_version(newest: str, *, minimum: str) -> ApiVersion:
    """Return the API version to use with an Engine that supports `minimum` to `newest`.

    Raise FailedPrecondition when there is no common one.
    """
    theirs, least = _version_from_text(newest), _version_from_text(minimum or "1.12")
    if theirs < OLDEST:
        raise FailedPrecondition(
            f"the docker engine speaks api version {newest}, "
            f"at least {text_from_version(OLDEST)} (engine 20.10) is needed"
        )
    if least > NEWEST:
        raise FailedPrecondition(
            f"the docker engine speaks no api version below {minimum} (its min-api-version), "
            f"at most {text_from_version(NEWEST)} is known here"
        )
    return min(theirs, NEWEST)


def _version_from_text(text: str) -> ApiVersion:
    version = _VERSION.fullmatch(text)
    if version is None:
        raise FailedPrecondition(f"the docker engine speaks api version {text[:40]!r}, which is not a version")
    return int(version[1]), int(version[2])
