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
    """Yield each change of each pod sandbox and container from now on, once and in order, until the client leaves.

    A client has taken an event when it asks for the next event: gRPC does so once the event is on its way to the
    socket. Each event carries the state of the whole pod at the time of sending, so that the client need not ask. The
    exception is the removal of a sandbox whose pod has another sandbox.

    Raise Unavailable when the connection to Docker is lost, and ResourceExhausted if the client does not keep up. In
    both cases the client has to list again: a stream that continued would hide the gap.
    """
    with rt.view.subscribe() as changes:
        while True:
            event = _response(rt, changes.wait_next())
            with changes.handing_over():
                yield event


@contextmanager
def events_first(rt: Runtime) -> Iterator[None]:
    """Wait at the end of the block, also after an error, until all streams have taken the events of its changes.

    The kubelet assumes that an event is newer than any reply. If STARTED arrives after the reply of the RPC, the
    kubelet sees a pod without the container and creates it again.
    """
    try:
        yield
    finally:
        rt.view.wait_taken()


def _response(rt: Runtime, change: Change) -> pb.ContainerEventResponse:
    """Return the event of a change.

    Uses the last known records, since changes before a loss of Docker are still sent after it.
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
    """Return the sandbox whose state the event carries.

    None for a removed sandbox whose pod has another sandbox: on such a state the kubelet would forget the whole pod and
    create it a second time. It ignores events without a state.
    """
    record = change.record
    if isinstance(record, ContainerRecord):
        return last_known_sandbox(rt, record.sandbox_id)
    if change.kind != pb.CONTAINER_DELETED_EVENT:
        return last_known_sandbox(rt, record.id) or record
    return None if _has_other_sandbox(rt, record) else record


def _has_other_sandbox(rt: Runtime, removed: SandboxRecord) -> bool:
    """Return whether the pod of a removed sandbox has another. Sandboxes without a uid (crictl) share no pod."""
    uid = removed.config.metadata.uid
    return bool(uid) and any(other.id != removed.id for other in rt.view.last_known_sandboxes_of(uid))
