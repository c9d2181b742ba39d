"""The Docker SDK's API client over the server's pool of connections."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import docker
import msgspec
import requests

from shim.base import deadline
from shim.base.deadline import Scope
from shim.engine.bounds import ANSWER, ERROR, Rows, Whole
from shim.engine.connection import ConnectionLost, DockerConnection, text_from_version
from shim.engine.failures import Refused, is_about_version, refusal_message
from shim.engine.http1 import Head
from shim.engine.pool import OLDEST, USER_AGENT, Pool

Params = Mapping[str, Any]

_JSON = {**USER_AGENT, "Content-Type": "application/json"}


class Reply(requests.Response):
    """A complete response of the Engine, in the form that the SDK's methods read."""

    def __init__(self, head: Head, content: bytes) -> None:
        super().__init__()
        self.head = head
        self.status_code = head.status
        self.encoding = "utf-8"
        self._content = content
        self._content_consumed = True

    def json(self, **_options: Any) -> Any:
        """Decode the body."""
        return msgspec.json.decode(self.content)


class DockerSession(docker.APIClient):
    """`docker.APIClient` whose requests go over a `Pool`. Thread-safe.

    The SDK contributes the paths and parameters of ten calls. This class replaces `request`, the method that all of the
    SDK's calls use, and raises `Refused` for every error status. A transport adapter below the SDK would be too slow:
    an inspect takes 770 to 1040 us of processor time with the SDK's transport, almost all of it in requests (sessions,
    cookies, proxies, redirects, prepared requests), and 64 to 113 us with this class (`make bench-http`). Besides,
    another thread cannot end the waits of the SDK's connections, and the SDK's API version is fixed.
    """

    def __init__(self, pool: Pool, *, timeout: float | None) -> None:
        # This version only keeps the constructor from querying the Engine: each connection has its own version.
        super().__init__(
            base_url=f"unix://{pool.path}",
            version=text_from_version(OLDEST),
            timeout=timeout,  # type: ignore[arg-type] # the stub knows whole seconds only, None works
        )
        self._prefix = f"{self.base_url}/v{self.api_version}"
        self._pool = pool

    def request(  # type: ignore[override] # the SDK uses these few of the arguments of requests
        self,
        method: str,
        url: str,
        *,
        params: Params | None = None,
        data: str | bytes | None = None,
        timeout: float | None = None,
        into: Whole | Rows | None = None,
        **_unused: Any,
    ) -> Reply:
        """Send a request and read its whole response into `into`, by default at most ANSWER bytes.

        `timeout` is in seconds; None leaves the bound to the scope. `url` is the SDK's, or a path of the Engine API
        without its version. The SDK's headers are dropped: the only relevant headers would be those that root's
        ~/.docker/config.json sets for the command line. Raise Refused for an error status, TooLarge beyond the bound of
        `into`, ConnectionLost or TimedOut.
        """
        outer = deadline.current()
        scope = Scope(seconds=outer.remaining(timeout))
        body = data.encode() if isinstance(data, str) else data or b""
        with self._pool.lease(scope=scope, outer=outer) as connection:
            target = _target(connection, url.removeprefix(self._prefix), params)
            headers = _JSON if body else USER_AGENT
            head = connection.request(method, target, scope=scope, headers=headers, body=body)
            if head.status >= 400:
                content = connection.read_some(scope, most=ERROR)
            else:
                content = connection.read_all(scope, into=into or Whole(ANSWER))
        if head.status >= 400:
            raise self._refused(head.status, content)
        return Reply(head, content)

    def _refused(self, status: int, content: bytes) -> Refused:
        refused = Refused(status, refusal_message(content))
        if is_about_version(refused):
            self._pool.forget()
        return refused

    @contextmanager
    def stream_response(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float | None,
    ) -> Iterator["ResponseStream"]:
        """Send a request and yield its response as a stream.

        `timeout` in seconds bounds the wait for its head; None leaves it to the scope. The connection is closed, which
        ends Docker's work, if the block is left before the end of the response or the client disconnects.
        """
        outer = deadline.current()
        scope = Scope(seconds=outer.remaining(timeout))
        connection = self._pool.take(scope=scope, outer=outer)
        stream = ResponseStream(connection, outer, forget=self._pool.forget)
        try:
            with outer.on_cancel(stream.abort):
                target = _target(connection, path, params)
                every = {**(_JSON if body else USER_AGENT), **(headers or {})}
                head = connection.request(method, target, scope=scope, headers=every, body=body)
                if head.status >= 400:
                    raise self._refused(head.status, connection.read_some(scope, most=ERROR))
                yield stream
        finally:
            stream.end()
            self._pool.give_back(connection)


class ResponseStream:
    """A response that is being read on a dedicated connection. One thread reads; any thread may `abort`.

    The scope of the waiting thread bounds each wait. `scope` is the scope in which the stream was opened.
    """

    __slots__ = ("_aborted", "_connection", "_forget", "_use", "scope")

    def __init__(self, connection: DockerConnection, scope: Scope, *, forget: Callable[[], None]) -> None:
        """`forget` is called when the daemon seems to be gone."""
        self._connection = connection
        self._forget = forget
        self._use = connection.begin_use()
        self.scope = scope
        self._aborted = threading.Event()

    def is_aborted(self) -> bool:
        """Return whether `abort` ended the stream, not the Engine."""
        return self._aborted.is_set()

    def read(self) -> bytes:
        """Wait for the next piece of the response body; empty at its end, and after `abort`."""
        return self._next(self._connection.read)

    def read_raw(self, most: int) -> bytes:
        """Wait for up to `most` bytes of an upgraded connection; empty at its end, and after `abort`."""
        return self._next(lambda scope: self._connection.read_raw(scope, most=most))

    def write(self, data: bytes | memoryview) -> None:
        """Send `data` over an upgraded connection."""
        self._connection.send(data, scope=deadline.current())

    def write_eof(self) -> None:
        """Close the sending direction; the connection stays readable."""
        self._connection.send_eof()

    def abort(self) -> None:
        """End the connection and every wait on it. Idempotent."""
        self._aborted.set()
        self._connection.abort(self._use)

    def lose(self) -> None:
        """End the stream because the daemon seems to be gone: its earlier answers say nothing of it now."""
        self.abort()
        self._forget()

    def abandon(self) -> None:
        """Stop reading the response. The connection is reused once Docker has sent the rest."""
        self._connection.abandon()

    def end(self) -> None:
        """End the use of the connection; abort it unless the response was read to its end or abandoned."""
        if not self._connection.reusable:
            self.abort()
        self._connection.end_use()

    def _next(self, receive: Callable[[Scope], bytes]) -> bytes:
        if self.is_aborted():
            return b""
        scope = deadline.current()
        try:
            with scope.on_cancel(self.abort):
                return receive(scope)
        except ConnectionLost:
            if self.is_aborted():
                return b""
            self.lose()
            raise


def _target(connection: DockerConnection, path: str, params: Params | None) -> str:
    target = f"/v{text_from_version(connection.version)}{path}"
    if not params:
        return target
    return f"{target}?{urlencode({key: value for key, value in params.items() if value is not None})}"
