"""Compiled CRI definition against the table of wire facts, and the generated services over a real channel."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from shim.api.v1 import api_pb2, api_pb2_grpc
from tests.api.definitions import Facts, compiled, facts_from_definition, walk_messages

REPOSITORY = Path(__file__).parents[2]
TABLE = REPOSITORY / "tests/data/cri-v1.tsv"
PACKAGE = "runtime.v1"


def facts_from_table() -> Facts:
    rpcs: dict[str, str] = {}
    messages: dict[str, dict[str, str]] = defaultdict(dict)
    enums: dict[str, dict[str, int]] = defaultdict(dict)
    for line in TABLE.read_text().splitlines():
        match line.split("\t"):
            case ["rpc", service, method, request, response, ""]:
                rpcs[f"{service}/{method}"] = f"{request} -> {response}"
            case ["enum", enum, value, number, "", ""]:
                enums[enum][value] = int(number)
            case ["field", message, field, number, type_, options]:
                messages[message][field] = f"{number}: {type_} [{options}]"
            case ["message", message, "", "", "", ""]:
                messages[message] = {}
            case [comment] if comment.startswith("#"):
                pass
            case _:
                raise ValueError(f"{TABLE.name}: not a row of the table: {line!r}")
    return Facts(rpcs, dict(messages), dict(enums))


EXPECTED = facts_from_table()
DEFINITION = compiled(api_pb2.DESCRIPTOR)
COMPILED = facts_from_definition(DEFINITION)


@pytest.mark.parametrize("rpc", EXPECTED.rpcs)
def test_rpc(rpc: str) -> None:
    assert COMPILED.rpcs.get(rpc) == EXPECTED.rpcs[rpc]


@pytest.mark.parametrize("message", EXPECTED.messages)
def test_message(message: str) -> None:
    assert COMPILED.messages.get(message) == EXPECTED.messages[message]


@pytest.mark.parametrize("enum", EXPECTED.enums)
def test_enum(enum: str) -> None:
    assert COMPILED.enums.get(enum) == EXPECTED.enums[enum]


def test_table_is_complete() -> None:
    counts = len(EXPECTED.rpcs), len(EXPECTED.messages)
    assert counts == (43, 175)


def test_nothing_is_defined_beyond_the_table() -> None:
    assert COMPILED.rpcs.keys() == EXPECTED.rpcs.keys()
    assert COMPILED.messages.keys() == EXPECTED.messages.keys()
    assert COMPILED.enums.keys() == EXPECTED.enums.keys()


def test_package_and_syntax() -> None:
    assert (DEFINITION.package, DEFINITION.syntax) == (PACKAGE, "proto3")


def test_no_field_has_explicit_presence() -> None:
    """CRI v1 has neither `oneof` nor `optional`; `optional` compiles to a oneof."""
    assert [name for name, message in walk_messages(DEFINITION) if message.oneof_decl] == []


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    """Connect to a server with the two generated services, on which nothing is implemented."""
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    api_pb2_grpc.add_RuntimeServiceServicer_to_server(api_pb2_grpc.RuntimeServiceServicer(), server)
    api_pb2_grpc.add_ImageServiceServicer_to_server(api_pb2_grpc.ImageServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as connected:
        yield connected
    server.stop(grace=None).wait()


@pytest.mark.parametrize("rpc", EXPECTED.rpcs)
def test_generated_client_reaches_generated_server(rpc: str, channel: grpc.Channel) -> None:
    """A method that the server does not register answers "Method not found!" instead."""
    service, method = rpc.split("/")
    stub = getattr(api_pb2_grpc, f"{service}Stub")(channel)
    request, response = EXPECTED.rpcs[rpc].split(" -> ")
    call = getattr(stub, method)
    with pytest.raises(grpc.RpcError, match="Method not implemented!"):
        receive(call, getattr(api_pb2, request)(), streamed=response.startswith("stream "))


def receive(call: Callable[..., object], request: object, *, streamed: bool) -> None:
    answer = call(request, timeout=10)
    if streamed:
        assert isinstance(answer, Iterator)
        next(answer)
