"""Events of a sandbox that is being set up are deferred, all others published at once."""

from dataclasses import replace

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.broadcast import Subscription
from shim.domain.errors import DeadlineExceeded
from shim.domain.names import sandbox_name
from shim.view.changes import CREATED, DELETED, STARTED, STOPPED
from shim.view.event_publisher import EventPublisher
from shim.view.records import Change, SandboxRecord
from tests.view.samples import POD, container, container_state, sandbox

NAME = sandbox_name(POD)


@pytest.fixture
def publisher() -> EventPublisher:
    return EventPublisher(capacity=10)


def just_created() -> SandboxRecord:
    return replace(sandbox(), state=container_state(pb.CONTAINER_CREATED))


def heard(changes: Subscription[Change]) -> list[tuple[str, pb.ContainerEventType]]:
    """All that has been told so far."""
    told: list[tuple[str, pb.ContainerEventType]] = []
    with deadline.bound(0.01):
        try:
            while True:
                change = changes.wait_next()
                told.append((change.record.id, change.kind))
        except DeadlineExceeded:
            return told


def test_events_of_a_deferred_sandbox_are_published_at_the_flush(publisher: EventPublisher) -> None:
    with publisher.subscribe() as changes:
        publisher.defer(NAME)
        publisher.publish(None, just_created())
        publisher.publish(just_created(), sandbox())
        assert heard(changes) == []
        publisher.flush(NAME)
        assert heard(changes) == [("s1", CREATED), ("s1", STARTED)]
        publisher.publish(sandbox(), None)
        assert heard(changes) == [("s1", STOPPED), ("s1", DELETED)]


def test_a_deferred_sandbox_that_is_removed_has_all_its_events(publisher: EventPublisher) -> None:
    with publisher.subscribe() as changes:
        publisher.defer(NAME)
        publisher.publish(None, sandbox())
        publisher.publish(sandbox(), None)
        publisher.flush(NAME)
        assert heard(changes) == [("s1", kind) for kind in (CREATED, STARTED, STOPPED, DELETED)]


def test_events_of_others_are_not_deferred(publisher: EventPublisher) -> None:
    other = replace(
        sandbox("s2"), config=pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="other", namespace="n", uid="u"))
    )
    with publisher.subscribe() as changes:
        publisher.defer(NAME)
        publisher.publish(None, other)
        publisher.publish(None, container())
        assert heard(changes) == [("s2", CREATED), ("s2", STARTED), ("c1", CREATED)]


def test_times_never_go_back(publisher: EventPublisher) -> None:
    with publisher.subscribe() as changes:
        publisher.defer(NAME)
        publisher.publish(None, sandbox())
        publisher.publish(None, container())
        publisher.flush(NAME)
        told = [changes.wait_next() for _ in range(3)]
    assert [change.record.id for change in told] == ["c1", "s1", "s1"]
    assert [change.at for change in told] == sorted(change.at for change in told)
