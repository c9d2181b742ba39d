"""A connection with one plugin: calls in both directions over its socket."""

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
from shim.domain.errors import ShimError, reason_of
from shim.nri import ttrpc, wire
from shim.nri.mux import Broken
from shim.nri.wire import Answered, Called, Wire

MAX_WAITING = 16
"""Calls of one plugin that wait for the one that is served."""
MAX_TEXT = 1024
"""Characters of the text of a plugin's error that are kept."""

_READ = 1 << 16

log = structlog.get_logger(__name__)

A = TypeVar("A", bound=Message)
Serve = Callable[[str, bytes], bytes]
"""Answers a call of the plugin, by its method: payload to payload. ShimError and NotServed are the plugin's answer."""


class Gone(ShimError):
    """The plugin has closed its connection, or has lost it since it broke the protocol or did not answer in time."""


class Slow(ShimError):
    """The plugin does not answer in time, or takes no more bytes. Its connection is to be closed."""


class PluginFailed(ShimError):
    """The plugin has answered with an error."""

    def __init__(self, text: str, *, code: int) -> None:
        super().__init__(text)
        self.code = code


class NotServed(Exception):
    """No such method is served."""


class Connection:
    """Thread-safe. It has a thread that reads, and one that serves the plugin's calls, one after the other."""

    def __init__(
        self,
        opened: socket.socket,
        *,
        serve: Serve,
        send_seconds: float,
        on_end: "Callable[[Connection, str], None]",
    ) -> None:
        """`send_seconds` is how long the plugin may need to take an answer; `on_end` is called once with the reason."""
        self._socket = opened
        self._serve = serve
        self._send_seconds = send_seconds
        self._on_end = on_end
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._numbers = wire.streams()
        self._awaited: dict[int, Answered | None] = {}
        """Answers by stream; None for those that have not come."""
        self._ended = ""
        self._calls: queue.SimpleQueue[Called | None] = queue.SimpleQueue()
        self._waiting = 0
        opened.setblocking(False)

    def start(self) -> None:
        """Begin to read and to serve."""
        for work, name in ((self._read, "nri-read"), (self._serve_calls, "nri-serve")):
            threading.Thread(target=work, name=name, daemon=True).start()

    @property
    def ended(self) -> str:
        """Why the connection has ended; empty while it has not."""
        return self._ended

    def call(self, method: str, request: Message, answer: type[A], *, seconds: float) -> A:
        """Call the plugin and return its answer.

        Raise PluginFailed; Slow after `seconds`, and Gone, after which the connection is to be closed; and what ends
        the current scope, after which an answer that comes yet is dropped.
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
        """Wait until `predicate` holds, asked at each `wake`, or the connection has ended; False if not in time."""
        return deadline.wait_for(
            self._changed, lambda: predicate() or bool(self._ended), what="wait for a plugin", limit=seconds
        )

    def wake(self) -> None:
        """Have those that wait look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self, why: str) -> None:
        """Close the connection; calls under way end with Gone. Idempotent."""
        with self._changed:
            if self._ended:
                return
            self._ended = why or "closed"
            self._changed.notify_all()
        self._on_end(self, self._ended)
        self._calls.put(None)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads, which closes it
        except OSError as error:
            log.debug("plugin had closed its connection", reason=reason_of(error))

    def _result(self, method: str, answered: Answered | str | None, kind: type[A], *, seconds: float) -> A:
        match answered:
            case Answered(code=wire.OK):
                try:
                    return wire.decode(kind, answered.payload, what=f"answer to {method}")
                except Broken as error:
                    self.close(str(error))
                    raise Gone(str(error)) from error
            case Answered():
                raise PluginFailed(answered.text[:MAX_TEXT] or f"code {answered.code}", code=answered.code)
            case None | "":
                raise Slow(f"{method}: no answer within {seconds:g} s")
            case str(why):
                raise Gone(f"{method}: {why}")

    def _send(self, content: bytes, *, end: float) -> None:
        """Send as a whole. Raise Gone; Slow when the plugin has not taken it at the time `end`."""
        left = memoryview(content)
        with self._sending:
            while left and not self._ended:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    _wait(self._socket, select.POLLOUT, end=end)
                except OSError as error:
                    raise Gone(reason_of(error)) from error
        if left:
            raise Gone(self._ended)

    def _read(self) -> None:
        received = Wire()
        why = "the plugin has closed its connection"
        try:
            while data := self._receive():
                for event in received.receive(data):
                    self._take(event)
        except (Broken, ShimError) as error:
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

    def _take(self, event: Answered | Called) -> None:
        if isinstance(event, Answered):
            with self._changed:
                if event.stream in self._awaited:  # an answer that nobody waits for is dropped
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

    def _response(self, called: Called) -> bytes:
        try:
            return wire.response_bytes(called.stream, self._serve(called.method, called.payload))
        except NotServed:
            return wire.response_bytes(called.stream, code=wire.UNIMPLEMENTED, text="there is no such method")
        except Broken as error:
            return wire.response_bytes(called.stream, code=wire.INVALID, text=str(error))
        except (ShimError, ttrpc.TooLong) as error:
            return wire.response_bytes(called.stream, code=wire.UNKNOWN, text=str(error))

    def _answer(self, content: bytes) -> None:
        self._send(content, end=time.monotonic() + self._send_seconds)


def _wait(opened: socket.socket, events: int, *, end: float | None) -> None:
    """Wait until a socket is ready. Raise Slow."""
    poll = select.poll()
    poll.register(opened, events)
    left = None if end is None else (end - time.monotonic()) * 1000
    if (left is not None and left <= 0) or not poll.poll(left):
        raise Slow("the plugin takes no more bytes")
