"""The streaming server: accepts, reads a request, takes its token, and gives the session a thread."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

import structlog

from shim import deadline
from shim.errors import Cancelled, ShimError
from shim.streaming import portforward, remotecommand, spdy
from shim.streaming.http import Refused, Request, RequestReader, Upgrade, check_origin, refusal_bytes, upgrade_of
from shim.streaming.listener import Listener
from shim.streaming.pipe import Pipe, TlsPipe
from shim.streaming.sessions import PortForwardTask, RemoteTask, Sessions, Task
from shim.streaming.transport import Session
from shim.streaming.websocket import Channels, ChannelWire, TunnelWire
from shim.streaming.wire import Wire

REQUEST_SECONDS = 10.0
"""For the TLS handshake and the request together."""

MAX_REQUESTS = 256
"""Connections without a token at a time; more are closed at once. Sessions, which had one, are not counted."""

_PIECE = 16 * 1024

Serve = Callable[[Task, Session, str], None]
"""Serve a session of a task in the stream protocol given, until it is over."""

log = structlog.get_logger(__name__)


class StreamServer:
    """Serves a listener, for one start and one stop."""

    def __init__(self, listener: Listener, *, sessions: Sessions, serve: Serve, idle_timeout: float) -> None:
        self._listener = listener
        self._sessions = sessions
        self._serve = serve
        self._idle_timeout = idle_timeout
        self._requests = threading.BoundedSemaphore(MAX_REQUESTS)
        self._changed = threading.Condition()
        self._running: set[Session] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name="streaming", daemon=True)

    def start(self) -> None:
        """Accept connections from now on."""
        self._thread.start()
        log.info("serving streams", url=self._listener.base_url)

    def stop(self, *, grace: float) -> bool:
        """Accept nothing more, end the sessions, and wait for them up to `grace` seconds; whether all ended."""
        with self._changed:
            self._stopping = True
            running = list(self._running)
        # Closing a socket does not wake who waits in accept on it.
        with suppress(OSError):
            self._listener.socket.shutdown(socket.SHUT_RDWR)
        self._listener.socket.close()
        self._thread.join(grace)
        for session in running:
            session.end("the server stops")
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, grace)

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.socket.accept()
            except OSError as error:
                if self._stopping:
                    return
                # No descriptor is free, or the client has gone before it was accepted.
                log.warning("cannot accept a streaming connection", error=error)
                with self._changed:
                    self._changed.wait(0.1)
                continue
            if not self._requests.acquire(blocking=False):
                connected.close()
                continue
            try:
                threading.Thread(target=self._connection, args=(connected,), name="stream", daemon=True).start()
            except RuntimeError as error:  # no thread is to be had
                log.warning("cannot serve a streaming connection", error=error)
                self._requests.release()
                connected.close()

    def _connection(self, connected: socket.socket) -> None:
        scope = deadline.Scope(seconds=REQUEST_SECONDS)
        found = None
        try:
            connected = self._secured(connected, scope)
            found = self._request(connected, scope)
        except OSError as error:
            log.debug("a streaming connection ended before its session began", error=error)
        finally:
            self._requests.release()
            if found is None:
                connected.close()
        if found is not None:
            self._run(*found)

    def _secured(self, connected: socket.socket, scope: deadline.Scope) -> socket.socket:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.settimeout(scope.remaining())
        if self._listener.tls is None:
            return connected
        return self._listener.tls.wrap_socket(connected, server_side=True)

    def _request(self, connected: socket.socket, scope: deadline.Scope) -> tuple[Task, Session, str] | None:
        """Read the request; None when it was refused."""
        try:
            request = _read_request(connected, scope)
            task, upgrade = self._taken(request)
            connected.settimeout(scope.remaining())
            connected.sendall(upgrade.answer)
        except Refused as refused:
            log.info("refused a streaming request", status=int(refused.status), reason=str(refused))
            _refuse(connected, refused)
            return None
        pipe = TlsPipe(connected) if isinstance(connected, ssl.SSLSocket) else Pipe(connected)
        wire = _wire(task, upgrade)
        session = Session(pipe, wire, idle_timeout=self._idle_timeout, early=request.early)
        return task, session, upgrade.protocol

    def _taken(self, request: Request) -> tuple[Task, Upgrade]:
        check_origin(request, hosts=self._listener.hosts)
        kind, token = _kind_and_token(request.path)
        task = self._sessions.look(kind, token)
        if task is None:
            raise _not_found()
        upgrade = _upgrade(task, request)
        # Only now: a client that asks for one protocol and is refused may ask for another.
        if self._sessions.take(kind, token) is None:
            raise _not_found()
        return task, upgrade

    def _run(self, task: Task, session: Session, protocol: str) -> None:
        with self._changed:
            if self._stopping:
                session.end("the server stops")
            self._running.add(session)
        try:
            self._run_session(task, session, protocol)
        finally:
            with self._changed:
                self._running.discard(session)
                self._changed.notify_all()

    def _run_session(self, task: Task, session: Session, protocol: str) -> None:
        loop = threading.Thread(target=session.run, name=f"{task.kind} client", daemon=True)
        try:
            loop.start()
        except RuntimeError as error:  # no thread is to be had
            log.warning("cannot serve a streaming session", kind=task.kind, error=error)
            session.close(str(error))
            return
        began = time.monotonic()
        try:
            with deadline.entered(session.scope):
                self._serve(task, session, protocol)
        except Cancelled as gone:
            log.debug("the client of a streaming session has gone", error=gone)
        except ShimError as error:
            log.info("a streaming session failed", kind=task.kind, error=error)
        except Exception:
            log.exception("a streaming session failed", kind=task.kind)
        finally:
            session.finish()
            loop.join()
            log.debug("streaming session ended", kind=task.kind, seconds=round(time.monotonic() - began, 3))


def _read_request(connected: socket.socket, scope: deadline.Scope) -> Request:
    reader = RequestReader()
    while True:
        left = scope.remaining()
        if not left:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time")
        connected.settimeout(left)
        try:
            data = connected.recv(_PIECE)
        except TimeoutError as error:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time") from error
        request = reader.receive(data)
        if request is not None:
            return request


def _refuse(connected: socket.socket, refused: Refused) -> None:
    with suppress(OSError):
        connected.settimeout(1.0)
        connected.sendall(refusal_bytes(refused))
        connected.shutdown(socket.SHUT_WR)
        # What the client still sends must not reset the connection before it has read the answer.
        for _ in range(16):
            if not connected.recv(_PIECE):
                return


def _kind_and_token(path: str) -> tuple[str, str]:
    empty, _, rest = path.partition("/")
    kind, _, token = rest.partition("/")
    if empty or not token:
        raise _not_found()
    return kind, token


def _not_found() -> Refused:
    # The same answer whether a token was used, is too old or never was: it tells a guesser nothing.
    return Refused(HTTPStatus.NOT_FOUND, "there is no such streaming request, or not any more")


def _upgrade(task: Task, request: Request) -> Upgrade:
    if isinstance(task, PortForwardTask):
        return upgrade_of(request, spdy=portforward.SPDY_PROTOCOLS, websocket=portforward.WEBSOCKET_PROTOCOLS)
    return upgrade_of(request, spdy=remotecommand.SPDY_PROTOCOLS, websocket=remotecommand.WEBSOCKET_PROTOCOLS)


def _wire(task: Task, upgrade: Upgrade) -> Wire:
    if not upgrade.websocket:
        return spdy.Connection(spdy.Role.SERVER)
    if upgrade.protocol == portforward.TUNNEL_PROTOCOL:
        return TunnelWire()
    return ChannelWire(_channels(task, upgrade.protocol))


def _channels(task: Task, protocol: str) -> Channels:
    in_base64 = "base64" in protocol
    if isinstance(task, RemoteTask):
        headers = remotecommand.channel_headers(task, protocol=protocol)
        ready = min(number for number in headers if number not in {0, 4})
        return Channels(headers=headers, greetings={ready: b""}, base64=in_base64, closes=protocol.startswith("v5."))
    return Channels(
        headers=portforward.channel_headers(task.ports),
        greetings=portforward.channel_greetings(task.ports),
        base64=in_base64,
    )
