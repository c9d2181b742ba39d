"""ListPodSandbox."""

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.checkpoint.store import CheckpointStore
from shim.runtime import Runtime
from shim.sandbox.find import sandboxes
from shim.view.queries import filter_sandboxes
from shim.view.records import SandboxRecord


def list_pod_sandbox(rt: Runtime, *, filter: pb.PodSandboxFilter) -> list[pb.PodSandbox]:  # noqa: A002 - the CRI's word
    """List the sandboxes that match every part of the filter.

    The id may be a unique prefix. Raise InvalidArgument for an ambiguous prefix. An unknown id matches nothing.
    """
    records = filter_sandboxes(rt.unseen.seen(sandboxes(rt)), sandbox_id=filter.id, selector=filter.label_selector)
    listed = [_message(rt, record) for record in records]
    if filter.HasField("state"):
        return [sandbox for sandbox in listed if sandbox.state == filter.state.state]
    return listed


def sandbox_state(checkpoints: CheckpointStore, record: SandboxRecord) -> pb.PodSandboxState:
    """Return SANDBOX_READY or SANDBOX_NOTREADY."""
    return pb.SANDBOX_READY if pod.is_ready(checkpoints, record) else pb.SANDBOX_NOTREADY


def _message(rt: Runtime, record: SandboxRecord) -> pb.PodSandbox:
    message = pb.PodSandbox()
    message.CopyFrom(record.listed)
    message.state = sandbox_state(rt.checkpoints, record)
    return message
