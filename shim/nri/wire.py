"""The two services on one socket: requests and responses, of the runtime and of the plugin. Sans-IO.

`receive` takes what has come, whatever it is, and returns what it means. Nothing that a peer sends makes the memory
grow: a message is bounded, and of what is not asked for nothing is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from shim.api.nri.ttrpc_pb2 import Request, Response, Status
from shim.nri import mux, ttrpc
from shim.nri.mux import PLUGIN, RUNTIME, Broken

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

OK, UNKNOWN, INVALID, EXHAUSTED, UNIMPLEMENTED = 0, 2, 3, 8, 12
"""Codes of gRPC that are used here."""

_LAST_STREAM = (1 << 32) - 1

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class Called:
    """The plugin calls the runtime."""

    stream: int
    method: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """The plugin has answered a call of the runtime's."""

    stream: int
    code: int
    text: str
    payload: bytes


class Wire:
    """One connection with a plugin. Not thread-safe: one thread receives, and others may encode."""

    def __init__(self) -> None:
        self._demultiplexer = mux.Demultiplexer()
        self._messages = {PLUGIN: ttrpc.Messages(), RUNTIME: ttrpc.Messages()}

    def receive(self, data: bytes) -> Iterator[Called | Answered]:
        """Yield what has come. Raise Broken for what is not the protocol; nothing must be received after that.

        Bytes of other connections are passed over, as plugins in Go do.
        """
        for connection, piece in self._demultiplexer.receive(memoryview(data)):
            messages = self._messages.get(connection)
            if messages is None:
                continue
            try:
                for message in messages.receive(piece):
                    yield from _meaning(connection, message)
            except ttrpc.TooLong as error:
                raise Broken(str(error)) from error


def _meaning(connection: int, message: ttrpc.Message) -> Iterator[Called | Answered]:
    match connection, message.type:
        case (mux.RUNTIME, ttrpc.REQUEST):
            request = decode(Request, message.content, what="request")
            method = request.method if request.service == RUNTIME_SERVICE else ""
            yield Called(message.stream, method, request.payload)
        case (mux.PLUGIN, ttrpc.RESPONSE):
            response = decode(Response, message.content, what="response")
            yield Answered(message.stream, response.status.code, response.status.message, response.payload)
        case _:
            raise Broken(f"a message of type {message.type} on connection {connection}")


def decode(kind: type[M], content: bytes, *, what: str) -> M:
    """Read a message. Raise Broken."""
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise Broken(f"the {what} is no {kind.__name__}") from error


def request_bytes(stream: int, method: str, payload: bytes, *, seconds: float) -> bytes:
    """Return a call of the plugin, which it has so long to answer. Raise ttrpc.TooLong."""
    request = Request(
        service=PLUGIN_SERVICE, method=method, payload=payload, timeout_nano=max(1, round(seconds * 1_000_000_000))
    )
    message = ttrpc.Message(stream, ttrpc.REQUEST, request.SerializeToString())
    return mux.frames(PLUGIN, ttrpc.encode(message))


def response_bytes(stream: int, payload: bytes = b"", *, code: int = OK, text: str = "") -> bytes:
    """Return the answer to a call of the plugin. Raise ttrpc.TooLong."""
    response = Response(payload=payload)
    if code:
        response.status.CopyFrom(Status(code=code, message=text))
    message = ttrpc.Message(stream, ttrpc.RESPONSE, response.SerializeToString())
    return mux.frames(RUNTIME, ttrpc.encode(message))


def streams() -> Iterator[int]:
    """Yield the numbers of calls: odd, and never one twice. They suffice for years."""
    yield from range(1, _LAST_STREAM + 1, 2)
