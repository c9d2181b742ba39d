import struct

import pytest

from shim.api.nri.ttrpc_pb2 import Request, Response
from shim.nri import ttrpc
from shim.nri.mux import PLUGIN, RUNTIME, ProtocolError, frames
from shim.nri.wire import RUNTIME_SERVICE, IncomingCall, Reply, Wire


def received(connection: int, kind: int, content: bytes) -> list[IncomingCall | Reply]:
    message = ttrpc.encode(ttrpc.Message(9, kind, content))
    return list(Wire().receive(frames(connection, message)))


def test_the_connection_separates_calls_from_replies() -> None:
    request = Request(service=RUNTIME_SERVICE, method="UpdateContainers", payload=b"p")
    response = Response(payload=b"q")
    response.status.code, response.status.message = 5, "none"

    assert received(RUNTIME, ttrpc.REQUEST, request.SerializeToString()) == [IncomingCall(9, "UpdateContainers", b"p")]
    assert received(PLUGIN, ttrpc.RESPONSE, response.SerializeToString()) == [Reply(9, 5, "none", b"q")]


def test_a_method_of_another_service_is_unknown() -> None:
    request = Request(service="somebody.Else", method="UpdateContainers")
    assert received(RUNTIME, ttrpc.REQUEST, request.SerializeToString()) == [IncomingCall(9, "", b"")]


@pytest.mark.parametrize(
    ("connection", "kind", "content"),
    [(RUNTIME, ttrpc.RESPONSE, b""), (PLUGIN, ttrpc.REQUEST, b""), (PLUGIN, 3, b""), (RUNTIME, ttrpc.REQUEST, b"\xff")],
)
def test_malformed_bytes_break_the_connection(connection: int, kind: int, content: bytes) -> None:
    with pytest.raises(ProtocolError):
        received(connection, kind, content)


def test_bytes_of_unknown_connections_are_skipped() -> None:
    wire = Wire()
    assert list(wire.receive(struct.pack(">II", 77, 5) + b"hello" + struct.pack(">II", 0, 1) + b"x")) == []


def test_a_message_that_is_too_long_breaks_the_connection() -> None:
    header = struct.pack(">IIBB", ttrpc.MESSAGE_LIMIT + 1, 1, 1, 0)
    with pytest.raises(ProtocolError, match="at most"):
        list(Wire().receive(frames(RUNTIME, header)))
