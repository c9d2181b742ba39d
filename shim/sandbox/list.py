"""ListPodSandbox."""

from shim import pod
from shim.api.v1 import api_pb2 as pb
from shim.runtime import Runtime
from shim.sandbox.find import sandboxes
from shim.view.records import SandboxRecord


def list_pod_sandbox(rt: Runtime, *, filter: pb.PodSandboxFilter) -> list[pb.PodSandbox]:  # noqa: A002 - the CRI's word
    """List sandboxes that fit every part of the filter; the id in it may be a unique prefix."""
    return [_sandbox(rt, record) for record in sandboxes(rt) if _fits(rt, record, filter)]


def sandbox_state(rt: Runtime, record: SandboxRecord) -> pb.PodSandboxState:
    """Ready or not, in the CRI's words."""
    return pb.SANDBOX_READY if pod.is_ready(rt, record) else pb.SANDBOX_NOTREADY


def _fits(rt: Runtime, record: SandboxRecord, wanted: pb.PodSandboxFilter) -> bool:
    return (
        record.id.startswith(wanted.id)
        and (not wanted.HasField("state") or sandbox_state(rt, record) == wanted.state.state)
        and wanted.label_selector.items() <= record.config.labels.items()
    )


def _sandbox(rt: Runtime, record: SandboxRecord) -> pb.PodSandbox:
    return pb.PodSandbox(
        id=record.id,
        metadata=record.config.metadata,
        state=sandbox_state(rt, record),
        created_at=record.life.created_at,
        labels=record.config.labels,
        annotations=record.config.annotations,
        runtime_handler=record.runtime_handler,
    )
