import io
import json

from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.cri.unknown_fields import REMEMBERED_FIELDS, UnknownFieldWarnings, unknown_fields


def from_newer(message: Message, number: int, value: int = 1) -> bytes:
    """Serialise a message like a client whose CRI has an integer field of this number."""
    return message.SerializeToString() + bytes([0x80 | (number << 3 & 0x7F), number >> 4, value])


def test_a_request_of_this_version_has_no_unknown_fields() -> None:
    resources = pb.LinuxContainerResources(unified={"memory.high": "max"})
    config = pb.ContainerConfig(
        envs=[pb.KeyValue(key="A", value=b"1")], linux=pb.LinuxContainerConfig(resources=resources), labels={"a": "b"}
    )
    assert list(unknown_fields(pb.CreateContainerRequest(pod_sandbox_id="5a4d", config=config))) == []


def test_fields_of_a_newer_client_are_found_at_any_depth() -> None:
    request = pb.CreateContainerRequest.FromString(from_newer(pb.CreateContainerRequest(pod_sandbox_id="5a4d"), 99))
    request.config.mounts.add().MergeFromString(from_newer(pb.Mount(container_path="/data"), 98))
    request.config.linux.security_context.MergeFromString(from_newer(pb.LinuxContainerSecurityContext(), 97))

    assert set(unknown_fields(request)) == {
        "CreateContainerRequest.99",
        "Mount.98",
        "LinuxContainerSecurityContext.97",
    }


def test_each_unknown_field_is_logged_once(out: io.StringIO) -> None:
    warnings = UnknownFieldWarnings()
    request = pb.StartContainerRequest.FromString(from_newer(pb.StartContainerRequest(), 99))

    warnings.warn(request)
    warnings.warn(request)

    [line] = [json.loads(line) for line in out.getvalue().splitlines()]
    assert (line["level"], line["field"]) == ("warning", "StartContainerRequest.99")


def test_a_client_cannot_fill_the_log(out: io.StringIO) -> None:
    warnings = UnknownFieldWarnings()
    for number in range(100, 100 + 2 * REMEMBERED_FIELDS):
        warnings.warn(pb.StartContainerRequest.FromString(from_newer(pb.StartContainerRequest(), number)))

    assert len(out.getvalue().splitlines()) == REMEMBERED_FIELDS
