import threading
import time

import pytest

from shim import deadline
from shim.api.v1 import api_pb2 as pb
from shim.container.remove import remove_container
from shim.container.stop import stop_container
from shim.errors import Cancelled, Unavailable
from shim.events.stream import container_events
from shim.runtime import Runtime
from shim.sandbox.remove import remove_pod_sandbox
from tests.fakes.engine import FakeEngine
from tests.pods import ready_pod, running

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
        except (Cancelled, Unavailable) as error:
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
    """A reader that misses nothing from here on."""
    reader = Reader(rt)
    until = time.monotonic() + 10
    while not rt.view.stats().subscribers:
        assert time.monotonic() < until
        time.sleep(0.001)  # nothing tells that a generator has begun
    return reader


def test_each_step_once_and_in_order(rt: Runtime) -> None:
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


def test_the_stream_does_not_outlive_docker(rt: Runtime, engine: FakeEngine) -> None:
    reader = subscribed(rt)
    engine.disconnect()
    assert isinstance(reader.wait_end(), Unavailable)
    with pytest.raises(Unavailable):
        next(container_events(rt))


def test_a_stop_of_the_server_ends_the_stream(rt: Runtime) -> None:
    reader = subscribed(rt)
    rt.view.end_subscriptions(Unavailable("the server is stopping"))
    assert isinstance(reader.wait_end(), Unavailable)
    with pytest.raises(Unavailable, match="stopping"):
        next(container_events(rt))
