"""A connection to a plugin: calls in both directions over one socket."""

import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from google.protobuf.message import Message

from shim.base import deadline
from shim.domain.errors import ResourceExhausted, ShimError, reason_of
from shim.nri import ttrpc, wire
from shim.nri.mux import ProtocolError
from shim.nri.wire import IncomingCall, Reply, Wire

MAX_WAITING = 16
"""Maximum calls of a plugin that wait for the call in progress. Further calls are refused."""
MAX_TEXT = 1024
"""Maximum characters kept of a plugin's error text."""

_READ = 1 << 16

log = structlog.get_logger(__name__)

A = TypeVar("A", bound=Message)
Serve = Callable[[str, bytes], bytes]
"""Serves a call of the plugin: takes method and payload, returns a payload.

ShimError, ProtocolError and UnknownMethod are sent back as errors.
"""


class Disconnected(ShimError):
    """The connection is closed: by the plugin, or by the server after a protocol error or a late answer."""


class NoAnswer(ShimError):
    """The plugin does not answer in time, or does not read in time. The caller must close the connection."""


class PluginFailed(ShimError):
    """The plugin has answered with an error."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class UnknownMethod(Exception):
    """The server has no such method."""


class Connection:
    """A connection with a reader thread, and a thread that serves the plugin's calls in order. Thread-safe."""

    def __init__(
        self,
        opened: socket.socket,
        *,
        serve: Serve,
        send_seconds: float,
        on_end: "Callable[[Connection, str], None]",
    ) -> None:
        """`send_seconds` limits the sending of a response. `on_end` is called once, with the reason of the end."""
        self._socket = opened
        self._serve = serve
        self._send_seconds = send_seconds
        self._on_end = on_end
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._numbers = wire.streams()
        self._awaited: dict[int, Reply | None] = {}
        """Replies by stream; None until the reply arrives."""
        self._ended = ""
        self._calls: queue.SimpleQueue[IncomingCall | None] = queue.SimpleQueue()
        self._waiting = 0
        opened.setblocking(False)

    def start(self) -> None:
        """Start the threads. Close the connection and raise ResourceExhausted if that fails."""
        try:
            # The reader comes last, because it closes the socket at its end.
            for work, name in ((self._serve_calls, "nri-serve"), (self._read, "nri-read")):
                threading.Thread(target=work, name=name, daemon=True).start()
        except RuntimeError as error:
            self.close(str(error))
            self._socket.close()
            raise ResourceExhausted(f"no thread for the plugin's connection: {error}") from error

    @property
    def ended(self) -> str:
        """Why the connection has ended; empty while it is open."""
        return self._ended

    def call(self, method: str, request: Message, answer: type[A], *, seconds: float) -> A:
        """Call the plugin and return its answer.

        Raise PluginFailed, NoAnswer after `seconds`, or Disconnected. After the last two the caller must close the
        connection. Raise Cancelled or DeadlineExceeded if the current scope ends; a later answer is dropped.
        """
        end = time.monotonic() + seconds
        with self._changed:
            stream = next(self._numbers)
            self._awaited[stream] = None
        try:
            try:
                content = wire.request_bytes(stream, method, request.SerializeToString(), seconds=seconds)
            except ttrpc.TooLong as error:
                raise PluginFailed(f"{method}: {error}", code=wire.EXHAUSTED) from error
            self._send(content, end=end)
            answered = deadline.wait_for(
                self._changed,
                lambda: self._awaited[stream] or self._ended,
                what=f"wait for a plugin's answer to {method}",
                limit=max(0.0, end - time.monotonic()),
            )
        finally:
            with self._changed:
                del self._awaited[stream]
        return self._result(method, answered, answer, seconds=seconds)

    def wait(self, predicate: Callable[[], bool], *, seconds: float) -> bool:
        """Wait until `predicate` holds or the connection has ended; return False after `seconds`.

        `predicate` is evaluated at each `wake`.
        """
        return deadline.wait_for(
            self._changed, lambda: predicate() or bool(self._ended), what="wait for a plugin", limit=seconds
        )

    def wake(self) -> None:
        """Make calls of `wait` evaluate their predicates again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Close the connection; calls in progress raise Disconnected. Idempotent."""
        with self._changed:
            if self._ended:
                return
            self._ended = why or "closed"
            self._changed.notify_all()
        self._on_end(self, self._ended)
        self._calls.put(None)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader thread, which closes the socket
        except OSError as error:
            log.debug("plugin had closed its connection", reason=reason_of(error))

    def _result(self, method: str, answered: Reply | str | None, kind: type[A], *, seconds: float) -> A:
        match answered:
            case Reply(code=wire.OK):
                try:
                    return wire.decode(kind, answered.payload, what=f"answer to {method}")
                except ProtocolError as error:
                    self.close(str(error))
                    raise Disconnected(str(error)) from error
            case Reply():
                raise PluginFailed(answered.text[:MAX_TEXT] or f"code {answered.code}", code=answered.code)
            case None | "":
                raise NoAnswer(f"{method}: no answer within {seconds:g} s")
            case str(why):
                raise Disconnected(f"{method}: {why}")

    def _send(self, content: bytes, *, end: float) -> None:
        """Send all of `content`. Raise Disconnected, or NoAnswer if the plugin has not read it by `end` (monotonic)."""
        left = memoryview(content)
        with self._sending:
            while left and not self._ended:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    _wait(self._socket, select.POLLOUT, end=end)
                except OSError as error:
                    raise Disconnected(reason_of(error)) from error
        if left:
            raise Disconnected(self._ended)

    def _read(self) -> None:
        received = Wire()
        why = "the plugin has closed its connection"
        try:
            while data := self._receive():
                for event in received.receive(data):
                    self._take(event)
        except (ProtocolError, ShimError) as error:
            why = str(error)
        except OSError as error:
            why = reason_of(error)
        self.close(why)
        with self._sending:
            self._socket.close()

    def _receive(self) -> bytes:
        while not self._ended:
            try:
                return self._socket.recv(_READ)
            except BlockingIOError:
                _wait(self._socket, select.POLLIN, end=None)
        return b""

    def _take(self, event: Reply | IncomingCall) -> None:
        if isinstance(event, Reply):
            with self._changed:
                if event.stream in self._awaited:  # a reply without a waiter is dropped
                    self._awaited[event.stream] = event
                    self._changed.notify_all()
            return
        with self._changed:
            is_full = self._waiting >= MAX_WAITING
            self._waiting += not is_full
        if is_full:
            text = f"{MAX_WAITING} calls of the plugin are waiting"
            self._answer(wire.response_bytes(event.stream, code=wire.EXHAUSTED, text=text))
        else:
            self._calls.put(event)

    def _serve_calls(self) -> None:
        while (called := self._calls.get()) is not None:
            with self._changed:
                self._waiting -= 1
            try:
                self._answer(self._response(called))
            except ShimError as error:
                self.close(str(error))

    def _response(self, called: IncomingCall) -> bytes:
        try:
            return wire.response_bytes(called.stream, self._serve(called.method, called.payload))
        except UnknownMethod:
            return wire.response_bytes(called.stream, code=wire.UNIMPLEMENTED, text="unknown method")
        except ProtocolError as error:
            return wire.response_bytes(called.stream, code=wire.INVALID, text=str(error))
        except (ShimError, ttrpc.TooLong) as error:
            return wire.response_bytes(called.stream, code=wire.UNKNOWN, text=str(error))

    def _answer(self, content: bytes) -> None:
        self._send(content, end=time.monotonic() + self._send_seconds)


def _wait(opened: socket.socket, events: int, *, end: float | None) -> None:
    """Wait until a socket is ready. Raise NoAnswer at the monotonic time `end`."""
    poll = select.poll()
    poll.register(opened, events)
    left = None if end is None else (end - time.monotonic()) * 1000
    if (left is not None and left <= 0) or not poll.poll(left):
        raise NoAnswer("the plugin reads no more bytes")
