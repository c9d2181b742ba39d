"""The context of an RPC before its handler runs: request id, subjects and deadline."""

import secrets

import grpc
from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.base.deadline import Scope

_NO_DEADLINE = 1e9
"""Seconds; gRPC reports centuries for a call without a deadline."""

_IDS = {"pod_sandbox_id": "sandbox", "container_id": "container", "image_ref": "image"}
_SUBJECT_CHARACTERS = 256
"""Characters of a subject that are logged; validation is about to refuse a longer name."""


def scope_of(context: grpc.ServicerContext) -> Scope:
    """Open the scope of an RPC, which ends with the client's deadline or when the client goes away."""
    left = context.time_remaining()
    scope = Scope(seconds=left if left < _NO_DEADLINE else None)
    if not context.add_callback(scope.cancel):
        scope.cancel()
    return scope


def new_request_id() -> str:
    """Return eight hexadecimal digits that identify all log lines of an RPC."""
    return secrets.token_hex(4)


def subjects_of(message: Message) -> dict[str, str]:
    """Return the subjects of a request or a response by their log keys: pod, sandbox, container, image."""
    match message:
        case pb.RunPodSandboxRequest():
            found = {"pod": _pod(message.config)}
        case pb.CreateContainerRequest():
            name = message.config.metadata.name
            found = {"pod": _pod(message.sandbox_config), "name": name, "sandbox": message.pod_sandbox_id}
        case pb.PullImageRequest() | pb.RemoveImageRequest() | pb.ImageStatusRequest():
            found = {"image": message.image.image}
        case _:
            fields = message.DESCRIPTOR.fields_by_name
            found = {word: getattr(message, field) for field, word in _IDS.items() if field in fields}
    return {word: text[:_SUBJECT_CHARACTERS] for word, text in found.items() if text}


def _pod(config: pb.PodSandboxConfig) -> str:
    return "/".join(part for part in (config.metadata.namespace, config.metadata.name) if part)
