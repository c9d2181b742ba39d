import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.container.remove import remove_container
from shim.container.stop import stop_container
from shim.domain.errors import Cancelled, ResourceExhausted, ShimError, Unavailable
from shim.node.container_events import container_events
from shim.runtime import Runtime
from shim.sandbox.remove import remove_pod_sandbox
from shim.sandbox.stop import stop_pod_sandbox
from shim.view.node_view import NodeView
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running
from tests.view.samples import create_sandbox
from tests.waits import wait_until

Event = tuple[str, pb.ContainerEventType]

CREATED = pb.CONTAINER_CREATED_EVENT
STARTED = pb.CONTAINER_STARTED_EVENT
STOPPED = pb.CONTAINER_STOPPED_EVENT
DELETED = pb.CONTAINER_DELETED_EVENT


class Reader:
    """Reads a stream of events in a thread, as a client does."""

    def __init__(self, rt: Runtime) -> None:
        self.events: list[pb.ContainerEventResponse] = []
        self.error: Exception | None = None
        self.scope = deadline.Scope(seconds=30)
        self._changed = threading.Condition()
        with deadline.entered(self.scope):
            self._stream = container_events(rt)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with deadline.entered(self.scope):
                for event in self._stream:
                    with self._changed:
                        self.events.append(event)
                        self._changed.notify_all()
        except ShimError as error:  # a reader that a failed test has left ends with its deadline
            self.error = error

    def wait_kinds(self, container_id: str, *kinds: pb.ContainerEventType) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.kinds(container_id) == list(kinds), 10), self.events

    def kinds(self, container_id: str) -> list[pb.ContainerEventType]:
        return [event.container_event_type for event in self.events if event.container_id == container_id]

    def wait_end(self) -> Exception | None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.error


def subscribed(rt: Runtime) -> Reader:
    """Return a reader that gets every event from now on."""
    rt.view.sandboxes()  # wait for the first sync: an earlier subscriber would also wait out a loss of Docker
    reader = Reader(rt)
    until = time.monotonic() + 10
    while not rt.view.stats().subscribers:
        assert time.monotonic() < until
        time.sleep(0.001)  # a generator does not signal that it has begun
    return reader


def test_each_change_is_sent_once_and_in_order(rt: Runtime) -> None:
    reader = subscribed(rt)
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    stop_container(rt, container_id=container, timeout=0)
    remove_container(rt, container_id=container)
    remove_pod_sandbox(rt, sandbox_id=sandbox)
    for made in (container, sandbox):
        reader.wait_kinds(made, CREATED, STARTED, STOPPED, DELETED)
    reader.scope.cancel()
    assert isinstance(reader.wait_end(), Cancelled)


def test_an_event_carries_the_state_of_the_pod(rt: Runtime) -> None:
    reader = subscribed(rt)
    sandbox = ready_pod(rt)
    container = running(rt, sandbox)
    reader.wait_kinds(container, CREATED, STARTED)
    event = next(e for e in reader.events if (e.container_id, e.container_event_type) == (container, STARTED))
    assert event.pod_sandbox_status.id == sandbox
    assert event.pod_sandbox_status.state == pb.SANDBOX_READY
    assert [status.id for status in event.containers_statuses] == [container]
    assert event.created_at > 0


def test_the_removal_of_an_earlier_sandbox_does_not_end_the_pod_for_a_kubelet(rt: Runtime) -> None:
    """The kubelet forgets a pod on the removal of any of its sandboxes, unless the event has no status."""
    reader = subscribed(rt)
    made = []
    for attempt in range(2):
        metadata = pb.PodSandboxMetadata(name="web", uid="uid-web", namespace="default", attempt=attempt)
        made.append(ready_pod(rt, metadata=metadata))
        if attempt == 0:
            stop_pod_sandbox(rt, sandbox_id=made[0])
    other = ready_pod(rt, "other")
    for sandbox in (other, *made):
        remove_pod_sandbox(rt, sandbox_id=sandbox)
        reader.wait_kinds(sandbox, CREATED, STARTED, STOPPED, DELETED)
    removed = {event.container_id: event for event in reader.events if event.container_event_type == DELETED}
    assert {each: event.HasField("pod_sandbox_status") for each, event in removed.items()} == {
        other: True,
        made[0]: False,
        made[1]: True,
    }


def test_pods_without_a_uid_are_not_one_pod(rt: Runtime) -> None:
    """crictl creates such pods: the removal of a sandbox carries its state although other sandboxes exist."""

    reader = subscribed(rt)
    first, _second = (
        ready_pod(rt, name, metadata=pb.PodSandboxMetadata(name=name, namespace="default"))
        for name in ("first", "second")
    )
    remove_pod_sandbox(rt, sandbox_id=first)
    reader.wait_kinds(first, CREATED, STARTED, STOPPED, DELETED)
    removed = next(event for event in reader.events if event.container_event_type == DELETED)
    assert removed.pod_sandbox_status.id == first


def test_the_stream_ends_when_docker_is_lost(rt: Runtime, engine: FakeEngine) -> None:
    reader = subscribed(rt)
    engine.disconnect()
    assert isinstance(reader.wait_end(), Unavailable)


def test_a_sandbox_is_announced_when_it_is_ready(rt: Runtime) -> None:
    reader = subscribed(rt)
    sandbox = ready_pod(rt)
    reader.wait_kinds(sandbox, CREATED, STARTED)
    assert [event.pod_sandbox_status.state for event in reader.events] == [pb.SANDBOX_READY] * 2


def test_a_failed_sandbox_is_announced_until_its_removal(rt: Runtime, engine: FakeEngine) -> None:
    reader = subscribed(rt)
    scope = deadline.Scope()

    def run() -> None:
        with deadline.entered(scope):
            ready_pod(rt)

    with ThreadPoolExecutor(1) as pool, engine.held("start_container") as gate:
        made = pool.submit(run)
        gate.wait_entered()
        wait_until(lambda: len(rt.view.sandboxes()) == 1)
        scope.cancel()
        with pytest.raises(Cancelled):
            made.result()
    gone = next(subject for method, subject in engine.calls if method == "remove_container")
    reader.wait_kinds(gone, CREATED, DELETED)
    assert [event.pod_sandbox_status.state for event in reader.events] == [pb.SANDBOX_NOTREADY] * 2


def test_the_exit_of_a_pause_container_is_announced_as_not_ready(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    reader = subscribed(rt)
    engine.kill_container(sandbox, signal="SIGKILL")
    reader.wait_kinds(sandbox, STOPPED)
    assert reader.events[0].pod_sandbox_status.state == pb.SANDBOX_NOTREADY


def test_a_slow_client_gets_an_error_and_others_go_on(rt: Runtime, engine: FakeEngine) -> None:
    view = NodeView(engine, subscriber_capacity=2)
    view.complete_sync(view.begin_sync())
    small = replace(rt, view=view)
    slow, quick = container_events(small), subscribed(small)
    sandbox = create_sandbox(engine, start=False)
    first = threading.Thread(target=lambda: next(slow), daemon=True)
    first.start()
    wait_until(lambda: view.stats().subscribers == 2)
    for number in range(3):
        made = sandbox if number == 0 else create_sandbox(engine, attempt=number, start=False)
        view.refresh_container(made)
        quick.wait_kinds(made, CREATED)
        first.join(10)  # it reads the first event, and no more
    create_sandbox(engine, attempt=3)
    for container_id in list(engine.containers):
        view.refresh_container(container_id)
    with pytest.raises(ResourceExhausted, match="fell 2 changes behind"):
        list(slow)
    assert view.stats().subscribers == 1
    quick.scope.cancel()


def test_changes_before_a_loss_of_docker_are_sent_after_it(rt: Runtime, engine: FakeEngine) -> None:
    rt.view.sandboxes()
    with deadline.entered(deadline.Scope(seconds=30)), ThreadPoolExecutor(1) as pool:
        stream = container_events(rt)
        first = pool.submit(contextvars.copy_context().run, next, stream)
        wait_until(lambda: rt.view.stats().subscribers)
        sandbox = ready_pod(rt)
        created = first.result(30)
        engine.disconnect()
        wait_until(lambda: rt.view.stats().outage)

        started = next(stream)
        with pytest.raises(Unavailable):
            next(stream)
    assert [each.container_event_type for each in (created, started)] == [CREATED, STARTED]
    assert started.pod_sandbox_status.id == sandbox
