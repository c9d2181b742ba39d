"""The facts of a compiled definition, in the form of the tables in tests/data."""

from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    MethodDescriptorProto,
)


class Facts(NamedTuple):
    """One side of the comparison; both sides hold rows in the form of the table."""

    rpcs: dict[str, str]  # "Service/Method" -> "Request -> Response"
    messages: dict[str, dict[str, str]]  # message -> field -> "number: type [options]"
    enums: dict[str, dict[str, int]]  # enum -> value -> number


def compiled(descriptor: FileDescriptor) -> FileDescriptorProto:
    definition = FileDescriptorProto()
    descriptor.CopyToProto(definition)
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
    """Return a name without its package, whose parts are in lower case."""
    parts = full_name.split(".")
    return ".".join(part for part in parts if part[:1].isupper())
