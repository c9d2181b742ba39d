"""Compiled CRI definition against the table of wire facts, and the generated services over a real channel."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
)

from shim.api.v1 import api_pb2, api_pb2_grpc

REPOSITORY = Path(__file__).parents[2]
TABLE = REPOSITORY / "tests/data/cri-v1.tsv"
PACKAGE = "runtime.v1"


class Facts(NamedTuple):
    """One side of the comparison; both sides hold rows in the form of the table."""

    rpcs: dict[str, str]  # "Service/Method" -> "Request -> Response"
    messages: dict[str, dict[str, str]]  # message -> field -> "number: type [options]"
    enums: dict[str, dict[str, int]]  # enum -> value -> number


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


def compiled_definition() -> FileDescriptorProto:
    definition = FileDescriptorProto()
    api_pb2.DESCRIPTOR.CopyToProto(definition)
    return definition


def facts_from_definition(definition: FileDescriptorProto) -> Facts:
    rpcs = {
        f"{service.name}/{method.name}": rpc_row(method) for service in definition.service for method in service.method
    }
    messages = {name: message for name, message in walk_messages(definition) if not message.options.map_entry}
    return Facts(
        rpcs,
        {
            name: {field.name: field_row(message, field) for field in message.field}
            for name, message in messages.items()
        },
        {name: {value.name: value.number for value in enum.value} for name, enum in walk_enums(definition)},
    )


def walk_messages(definition: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """Yield every message, nested ones too, by its name below the package."""
    waiting = [(message.name, message) for message in definition.message_type]
    while waiting:
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{nested.name}", nested) for nested in message.nested_type]


def walk_enums(definition: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto]]:
    yield from ((enum.name, enum) for enum in definition.enum_type)
    for name, message in walk_messages(definition):
        yield from ((f"{name}.{enum.name}", enum) for enum in message.enum_type)


def rpc_row(method: MethodDescriptorProto) -> str:
    request = "stream " * method.client_streaming + below_package(method.input_type)
    response = "stream " * method.server_streaming + below_package(method.output_type)
    return f"{request} -> {response}"


def field_row(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    options = ",".join(option.name for option, _ in field.options.ListFields())
    return f"{field.number}: {field_type(message, field)} [{options}]"


def field_type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    entry = next((nested for nested in message.nested_type if field.type_name.endswith(f".{nested.name}")), None)
    if entry is not None and entry.options.map_entry:
        key, value = entry.field
        return f"map<{scalar_or_name(key)},{scalar_or_name(value)}>"
    repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    return "repeated " * repeated + scalar_or_name(field)


def scalar_or_name(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return below_package(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def below_package(full_name: str) -> str:
    return full_name.removeprefix(f".{PACKAGE}.")


EXPECTED = facts_from_table()
DEFINITION = compiled_definition()
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
    assert counts == (41, 170)


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
