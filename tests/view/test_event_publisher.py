"""Events of a sandbox that is being set up are deferred, all others published at once."""

from dataclasses import replace

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.base import deadline
from shim.base.broadcast import Subscription
from shim.domain.errors import DeadlineExceeded, ResourceExhausted, Unavailable
from shim.view.changes import CREATED, DELETED, STARTED, STOPPED
from shim.view.event_publisher import KEEP_SECONDS, EventPublisher
from shim.view.records import Change, SandboxRecord, sandbox_key
from tests.clock import Clock
from tests.view.samples import POD, container, container_state, sandbox

KEY = sandbox_key(POD)


LOST = Unavailable("docker is gone")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def publisher(clock: Clock) -> EventPublisher:
    return EventPublisher(capacity=10, clock=clock)


def just_created() -> SandboxRecord:
    return replace(sandbox(), state=container_state(pb.CONTAINER_CREATED))


def heard(changes: Subscription[Change]) -> list[tuple[str, pb.ContainerEventType]]:
    """Return all changes published so far."""
    reported: list[tuple[str, pb.ContainerEventType]] = []
    with deadline.bound(0.01):
        try:
            while True:
                change = changes.wait_next()
                reported.append((change.record.id, change.kind))
        except DeadlineExceeded:
            return reported


def test_events_of_a_deferred_sandbox_are_published_at_the_flush(publisher: EventPublisher) -> None:
    with publisher.subscribe() as changes:
        publisher.defer(KEY)
        publisher.publish(None, just_created())
        publisher.publish(just_created(), sandbox())
        assert heard(changes) == []
        publisher.flush(KEY)
        assert heard(changes) == [("s1", CREATED), ("s1", STARTED)]
        publisher.publish(sandbox(), None)
        assert heard(changes) == [("s1", STOPPED), ("s1", DELETED)]


def test_a_removed_deferred_sandbox_has_all_its_events(publisher: EventPublisher) -> None:
    with publisher.subscribe() as changes:
        publisher.defer(KEY)
        publisher.publish(None, sandbox())
        publisher.publish(sandbox(), None)
        publisher.flush(KEY)
        assert heard(changes) == [("s1", kind) for kind in (CREATED, STARTED, STOPPED, DELETED)]


def test_events_of_other_objects_are_not_deferred(publisher: EventPublisher) -> None:
    other = replace(
        sandbox("s2"), config=pb.PodSandboxConfig(metadata=pb.PodSandboxMetadata(name="other", namespace="n", uid="u"))
    )
    with publisher.subscribe() as changes:
        publisher.defer(KEY)
        publisher.publish(None, other)
        publisher.publish(None, container())
        assert heard(changes) == [("s2", CREATED), ("s2", STARTED), ("c1", CREATED)]


def test_times_never_go_back(publisher: EventPublisher) -> None:
    with publisher.subscribe() as changes:
        publisher.defer(KEY)
        publisher.publish(None, sandbox())
        publisher.publish(None, container())
        publisher.flush(KEY)
        reported = [changes.wait_next() for _ in range(3)]
    assert [change.record.id for change in reported] == ["c1", "s1", "s1"]
    assert [change.at for change in reported] == sorted(change.at for change in reported)


def test_changes_between_two_outages_are_kept_for_a_late_client(publisher: EventPublisher) -> None:
    with publisher.subscribe() as first:
        publisher.disconnect(LOST)
        with pytest.raises(Unavailable):
            first.wait_next()
    publisher.reconnect()
    publisher.publish(container(), None)
    publisher.disconnect(LOST)
    publisher.publish(None, container(container_id="c2"))

    with publisher.subscribe() as changes:
        publisher.reconnect()
        assert heard(changes) == [("c1", DELETED), ("c2", CREATED)]


def test_a_client_that_subscribed_between_outages_gets_nothing_twice(publisher: EventPublisher) -> None:
    publisher.disconnect(LOST)
    publisher.publish(container(), None)
    with publisher.subscribe() as first:
        publisher.reconnect()
        publisher.publish(None, container(container_id="c2"))
        assert heard(first) == [("c1", DELETED), ("c2", CREATED)]
        publisher.disconnect(LOST)
    with publisher.subscribe() as changes:
        publisher.reconnect()
        assert heard(changes) == []


def test_the_first_client_after_an_outage_gets_the_missed_changes(publisher: EventPublisher) -> None:
    publisher.disconnect(LOST)
    publisher.publish(container(), None)
    publisher.reconnect()
    with publisher.subscribe() as first, publisher.subscribe() as second:
        assert heard(first) == [("c1", DELETED)]
        assert heard(second) == []


def test_the_client_of_a_dropped_subscriber_misses_nothing(publisher: EventPublisher) -> None:
    with publisher.subscribe() as slow:
        assert slow.drop("its client has not taken a change within 100 ms")
        publisher.note_dropped()
        publisher.publish(container(), None)
        with pytest.raises(ResourceExhausted):
            slow.wait_next()
    with publisher.subscribe() as changes:
        publisher.publish(None, container(container_id="c2"))
        assert heard(changes) == [("c1", DELETED), ("c2", CREATED)]


def test_missed_changes_expire(publisher: EventPublisher, clock: Clock) -> None:
    publisher.disconnect(LOST)
    publisher.publish(container(), None)
    publisher.reconnect()
    clock.now += KEEP_SECONDS + 1
    with publisher.subscribe() as changes:
        assert heard(changes) == []


def test_missed_changes_beyond_the_capacity_are_not_kept(publisher: EventPublisher) -> None:
    publisher.disconnect(LOST)
    for number in range(11):
        publisher.publish(None, container(container_id=f"c{number}"))
    publisher.reconnect()
    with publisher.subscribe() as changes:
        assert heard(changes) == []


def test_a_follower_takes_no_missed_change_from_a_client(publisher: EventPublisher) -> None:
    """NRI plugins are told of exits by the server itself, which subscribes again before the kubelet does."""
    publisher.disconnect(LOST)
    publisher.publish(container(), None)
    with publisher.follow() as follower:
        publisher.reconnect()
        publisher.publish(None, container(container_id="c2"))
        with publisher.subscribe() as changes:
            assert heard(changes) == heard(follower) == [("c1", DELETED), ("c2", CREATED)]
