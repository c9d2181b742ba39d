"""Requests and responses of runtime and plugin over a shared socket. Sans-IO.

A peer cannot exhaust the memory, because messages are bounded and unrequested messages are dropped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from shim.api.nri.ttrpc_pb2 import Request, Response, Status
from shim.nri import mux, ttrpc
from shim.nri.mux import PLUGIN, RUNTIME, ProtocolError

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

OK, UNKNOWN, INVALID, EXHAUSTED, UNIMPLEMENTED = 0, 2, 3, 8, 12
"""gRPC status codes."""

_LAST_STREAM = (1 << 32) - 1

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """A call from the plugin."""

    stream: int
    method: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """The plugin's response to a call."""

    stream: int
    code: int
    text: str
    payload: bytes


class Wire:
    """Decodes the bytes of a plugin's socket. Not thread-safe."""

    def __init__(self) -> None:
        self._demultiplexer = mux.Demultiplexer()
        self._messages = {PLUGIN: ttrpc.Messages(), RUNTIME: ttrpc.Messages()}

    def receive(self, data: bytes) -> Iterator[IncomingCall | Reply]:
        """Yield the calls and replies that `data` completes. Raise ProtocolError, after which the object is unusable.

        Data of unknown connections is skipped, as in Go's implementation.
        """
        for connection, piece in self._demultiplexer.receive(memoryview(data)):
            messages = self._messages.get(connection)
            if messages is None:
                continue
            try:
                for message in messages.receive(piece):
                    yield from _decoded(connection, message)
            except ttrpc.TooLong as error:
                raise ProtocolError(str(error)) from error


def _decoded(connection: int, message: ttrpc.Message) -> Iterator[IncomingCall | Reply]:
    match connection, message.type:
        case (mux.RUNTIME, ttrpc.REQUEST):
            request = decode(Request, message.content, what="request")
            method = request.method if request.service == RUNTIME_SERVICE else ""
            yield IncomingCall(message.stream, method, request.payload)
        case (mux.PLUGIN, ttrpc.RESPONSE):
            response = decode(Response, message.content, what="response")
            yield Reply(message.stream, response.status.code, response.status.message, response.payload)
        case _:
            raise ProtocolError(f"a message of type {message.type} on connection {connection}")


def decode(kind: type[M], content: bytes, *, what: str) -> M:
    """Parse a message. Raise ProtocolError."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise ProtocolError(f"the {what} is not a valid {kind.__name__}") from error


def request_bytes(stream: int, method: str, payload: bytes, *, seconds: float) -> bytes:
    """Return the bytes of a call to the plugin with a timeout of `seconds`. Raise ttrpc.TooLong."""
    request = Request(
        service=PLUGIN_SERVICE, method=method, payload=payload, timeout_nano=max(1, round(seconds * 1_000_000_000))
    )
    message = ttrpc.Message(stream, ttrpc.REQUEST, request.SerializeToString())
    return mux.frames(PLUGIN, ttrpc.encode(message))


def response_bytes(stream: int, payload: bytes = b"", *, code: int = OK, text: str = "") -> bytes:
    """Return the bytes of the response to a call by the plugin. Raise ttrpc.TooLong."""
    response = Response(payload=payload)
    if code:
        response.status.CopyFrom(Status(code=code, message=text))
    message = ttrpc.Message(stream, ttrpc.RESPONSE, response.SerializeToString())
    return mux.frames(RUNTIME, ttrpc.encode(message))


def streams() -> Iterator[int]:
    """Yield unique odd numbers for calls. They suffice for years."""
    yield from range(1, _LAST_STREAM + 1, 2)
