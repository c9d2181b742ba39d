"""The streaming server: accepts connections, checks requests and tokens, and runs each session in a thread."""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

import structlog

from shim.base import deadline
from shim.domain.errors import Cancelled, ShimError
from shim.streaming import portforward, remotecommand, spdy
from shim.streaming.admission import FULL, Admission, Refusals, Slot, Slots
from shim.streaming.http import Refused, Request, RequestReader, Upgrade, check_origin, refusal_bytes, upgrade_of
from shim.streaming.listener import Listener
from shim.streaming.pipe import Pipe, TlsPipe, end_sending
from shim.streaming.session import Session
from shim.streaming.tokens import PortForwardTask, RemoteTask, Task, Tokens
from shim.streaming.websocket import Channels, ChannelWire, TunnelWire
from shim.streaming.wire import Wire

REQUEST_SECONDS = 10.0
"""Timeout of the TLS handshake and the request together."""

MAX_REQUESTS = 256
"""Maximum connections without a complete request; see `admission`. Sessions have other limits."""

MAX_REFUSED = 64
"""Maximum connections whose client is reading a refusal. Beyond this number the oldest is closed."""

MAX_STARTING = MAX_REQUESTS + 2 * MAX_REFUSED
"""Maximum threads of connections without a session: for the connections above, and threads that still end after their
connection was closed."""

REFUSED_SECONDS = 1.0
"""Seconds for a refused client to read the refusal."""

_PIECE = 16 * 1024

Serve = Callable[[Task, Session, str], None]
"""Serves a session of a task with a stream protocol until the session is over."""

log = structlog.get_logger(__name__)


class StreamServer:
    """Serves a listener. It can be started and stopped once."""

    def __init__(
        self,
        listener: Listener,
        *,
        tokens: Tokens,
        serve: Serve,
        idle_timeout: float,
        max_sessions: int = 512,
        max_sessions_each: int = 64,
    ) -> None:
        """Allow `max_sessions` concurrent sessions, and `max_sessions_each` per container or pod."""
        self._listener = listener
        self._tokens = tokens
        self._serve = serve
        self._idle_timeout = idle_timeout
        self._admission = Admission(most=max_sessions, most_each=max_sessions_each)
        self._requests = Slots(MAX_REQUESTS)
        self._refused = Slots(MAX_REFUSED)
        self._refusals = Refusals("streaming")
        self._starting = threading.BoundedSemaphore(MAX_STARTING)
        self._changed = threading.Condition()
        self._running: set[Session] = set()
        self._stopping = False
        self._thread = threading.Thread(target=self._accept, name="streaming", daemon=True)

    def start(self) -> None:
        """Start to accept connections."""
        self._thread.start()
        log.info("serving streams", url=self._listener.base_url)

    def stop(self, *, grace: float) -> bool:
        """Stop accepting, end all sessions, and wait up to `grace` seconds; return whether all have ended."""
        with self._changed:
            self._stopping = True
            running = list(self._running)
        # Closing a socket does not wake a thread in accept; shutdown does.
        with suppress(OSError):
            self._listener.socket.shutdown(socket.SHUT_RDWR)
        self._listener.socket.close()
        self._thread.join(grace)
        for session in running:
            session.end("the server stops")
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, grace)

    def row(self) -> dict[str, object]:
        """Return the number of open sessions, for the state dump."""
        with self._changed:
            return {"open": len(self._running)}

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.socket.accept()
            except OSError as error:
                if self._stopping:
                    return
                # No descriptor is free, or the client disconnected before it was accepted.
                log.warning("failed to accept streaming connection", error=error)
                with self._changed:
                    self._changed.wait(0.1)
                continue
            self._starting.acquire()  # a thread is free within seconds, because slots limit the connections
            slot, full = self._requests.take(connected)
            if full:
                self._refusals.note(FULL, text=f"{MAX_REQUESTS} connections have not sent a request; the oldest ends")
            try:
                threading.Thread(target=self._connection, args=(slot,), name="stream", daemon=True).start()
            except RuntimeError as error:  # no thread can be started
                log.warning("failed to serve streaming connection", error=error)
                self._requests.free(slot)
                self._starting.release()
                connected.close()

    def _connection(self, slot: Slot) -> None:
        try:
            found = self._open_session(slot)
        finally:
            self._requests.free(slot)
            self._starting.release()
        if found is not None:
            self._run(*found)

    def _open_session(self, slot: Slot) -> tuple[Task, Session, str] | None:
        """Read the request and upgrade the connection; None if it has ended."""
        scope = deadline.Scope(seconds=REQUEST_SECONDS)
        session = None
        try:
            self._secure(slot, scope)
            session = self._session(slot, scope)
        except OSError as error:
            log.debug("streaming connection ended before its session", error=error)
        finally:
            if session is None:
                slot.connected.close()
        return session

    def _secure(self, slot: Slot, scope: deadline.Scope) -> None:
        connected = slot.connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._listener.tls is not None:
            secured = self._listener.tls.wrap_socket(connected, server_side=True, do_handshake_on_connect=False)
            self._requests.secured(slot, secured)
            secured.settimeout(scope.remaining())
            secured.do_handshake()

    def _session(self, slot: Slot, scope: deadline.Scope) -> tuple[Task, Session, str] | None:
        """Read the request; None if it was refused, or the connection was closed for a new connection."""
        try:
            request = _read_request(slot.connected, scope)
        except Refused as refused:
            if self._requests.free(slot):
                self._refuse(slot.connected, refused)
            return None
        if not self._requests.free(slot):
            return None
        try:
            task, upgrade = self._admit(request)
        except Refused as refused:
            self._refuse(slot.connected, refused)
            return None
        try:
            session = self._upgrade(slot.connected, task, upgrade, scope, early=request.early)
        except BaseException:
            self._admission.leave(task)
            raise
        return task, session, upgrade.protocol

    def _upgrade(
        self, connected: socket.socket, task: Task, upgrade: Upgrade, scope: deadline.Scope, *, early: bytes
    ) -> Session:
        connected.settimeout(scope.remaining())
        connected.sendall(upgrade.answer)
        pipe = TlsPipe(connected) if isinstance(connected, ssl.SSLSocket) else Pipe(connected)
        return Session(pipe, _wire(task, upgrade), idle_timeout=self._idle_timeout, early=early)

    def _refuse(self, connected: socket.socket, refused: Refused) -> None:
        self._refusals.note(str(refused.status.value), text=str(refused))
        slot, _ = self._refused.take(connected)
        scope = deadline.Scope(seconds=REFUSED_SECONDS)
        try:
            connected.settimeout(scope.remaining())
            connected.sendall(refusal_bytes(refused))
            end_sending(connected)
            # Read all input, because unread input would reset the connection before the client has read the response.
            while left := scope.remaining():
                connected.settimeout(left)
                if not connected.recv(_PIECE):
                    return
        except OSError as error:
            log.debug("failed to send refusal to streaming client", error=error)
        finally:
            self._refused.free(slot)

    def _admit(self, request: Request) -> tuple[Task, Upgrade]:
        check_origin(request, hosts=self._listener.hosts)
        kind, token = _kind_and_token(request.path)
        task = self._tokens.peek(kind, token)
        if task is None:
            raise _not_found()
        upgrade = _upgrade(task, request)
        if full := self._admission.enter(task):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, full)
        # Take the token last, because a refused client may try again, for example with another protocol.
        if self._tokens.take(kind, token) is None:
            self._admission.leave(task)
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
            self._admission.leave(task)
            with self._changed:
                self._running.discard(session)
                self._changed.notify_all()

    def _run_session(self, task: Task, session: Session, protocol: str) -> None:
        loop = threading.Thread(target=session.run, name=f"{task.kind} client", daemon=True)
        try:
            loop.start()
        except RuntimeError as error:  # no thread can be started
            log.warning("failed to start streaming session", kind=task.kind, error=error)
            session.close(str(error))
            return
        began = time.monotonic()
        try:
            with deadline.entered(session.scope):
                self._serve(task, session, protocol)
        except Cancelled as gone:
            log.debug("streaming client disconnected", error=gone)
        except ShimError as error:
            log.info("streaming session failed", kind=task.kind, error=error)
        except Exception:
            log.exception("streaming session failed", kind=task.kind)
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


def _kind_and_token(path: str) -> tuple[str, str]:
    empty, _, rest = path.partition("/")
    kind, _, token = rest.partition("/")
    if empty or not token:
        raise _not_found()
    return kind, token


def _not_found() -> Refused:
    # The response is the same for used, expired and unknown tokens, so that guesses reveal nothing.
    return Refused(HTTPStatus.NOT_FOUND, "there is no such streaming request, or not any more")


def _upgrade(task: Task, request: Request) -> Upgrade:
    if isinstance(task, PortForwardTask):
        return upgrade_of(request, spdy=portforward.SPDY_PROTOCOLS, websocket=portforward.WEBSOCKET_PROTOCOLS)
    return upgrade_of(request, spdy=remotecommand.SPDY_PROTOCOLS, websocket=remotecommand.WEBSOCKET_PROTOCOLS)


def _wire(task: Task, upgrade: Upgrade) -> Wire:
    if isinstance(task, RemoteTask):
        most = len(remotecommand.expected_streams(task, protocol=upgrade.protocol))
    else:
        most = portforward.MAX_STREAMS
    if not upgrade.websocket:
        return spdy.Connection(spdy.Limits(max_streams=most))
    if upgrade.protocol == portforward.TUNNEL_PROTOCOL:
        return TunnelWire(spdy.Limits(max_streams=most))
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
