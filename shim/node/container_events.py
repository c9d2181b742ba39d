"""GetContainerEvents."""

from collections.abc import Iterator
from contextlib import contextmanager

from shim.api.v1 import api_pb2 as pb
from shim.container.status import pod_status_messages
from shim.runtime import Runtime
from shim.sandbox.find import last_known_sandbox
from shim.sandbox.status import sandbox_status_message
from shim.view.records import Change, ContainerRecord, SandboxRecord


def container_events(rt: Runtime) -> Iterator[pb.ContainerEventResponse]:
    """Yield each step of each pod sandbox and container from now on, once and in order, until the client goes.

    A client has taken an event when it asks for the next one: gRPC does once the event is on its way to the socket.

    Every event carries the state of the whole pod as it is when the event is sent, so that a client need not ask; only
    the removal of a sandbox whose pod has another one comes without. The stream ends with Unavailable when Docker is
    lost, and with ResourceExhausted for a client that does not keep up: either way the client has to list again, since
    a stream that merely went on would hide the gap.
    """
    with rt.view.subscribe() as changes:
        while True:
            event = _response(rt, changes.wait_next())
            with changes.handing_over():
                yield event


@contextmanager
def events_first(rt: Runtime) -> Iterator[None]:
    """Wait at the end of the block, however it ends, until all streams have taken the events of what was done in it.

    A kubelet takes an event for newer than every answer. One that receives the event of a start only after
    its answer sees a pod without that container, and makes it again.
    """
    try:
        yield
    finally:
        rt.view.wait_taken()


def _response(rt: Runtime, change: Change) -> pb.ContainerEventResponse:
    """Return the event of a change.

    What came before the loss of Docker is still to be sent after it, so the pod is as last known.
    """
    record = change.record
    sandbox = _sandbox_of(rt, change)
    containers = rt.unseen.seen(rt.view.last_known_containers_of(sandbox.id)) if sandbox else ()
    return pb.ContainerEventResponse(
        container_id=record.id,
        container_event_type=change.kind,
        created_at=change.at,
        pod_sandbox_status=sandbox_status_message(rt, sandbox) if sandbox else None,
        containers_statuses=pod_status_messages(rt, containers),
    )


def _sandbox_of(rt: Runtime, change: Change) -> SandboxRecord | None:
    """Return the sandbox whose state goes with a change.

    None for a removed one whose pod has another: a kubelet that gets it forgets the whole pod, and makes it once more
    beside the one that runs. It passes over events without a state.
    """
    record = change.record
    if isinstance(record, ContainerRecord):
        return last_known_sandbox(rt, record.sandbox_id)
    if change.kind != pb.CONTAINER_DELETED_EVENT:
        return last_known_sandbox(rt, record.id) or record
    return None if _has_other_sandbox(rt, record) else record


def _has_other_sandbox(rt: Runtime, removed: SandboxRecord) -> bool:
    """Whether the pod of a removed sandbox has another. Those without a uid, which crictl makes, share no pod."""
    uid = removed.config.metadata.uid
    return bool(uid) and any(other.id != removed.id for other in rt.view.last_known_sandboxes_of(uid))
