"""Subscribers read everything in order, or learn why they do not."""

import threading

import pytest

from shim.base import deadline
from shim.base.broadcast import Broadcast
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable


def test_every_subscriber_reads_every_item_in_order() -> None:
    source = Broadcast[int](capacity=10)
    with source.subscribe() as early:
        source.publish(1)
        with source.subscribe() as late:
            source.publish(2)
            assert [early.wait_next(), early.wait_next()] == [1, 2]
            assert late.wait_next() == 2


def test_slow_subscriber_is_dropped_and_the_others_go_on() -> None:
    source = Broadcast[int](capacity=2)
    with source.subscribe() as slow, source.subscribe() as quick:
        for item in range(3):
            source.publish(item)
            assert quick.wait_next() == item
        with pytest.raises(ResourceExhausted, match="fell 2 changes behind"):
            slow.wait_next()
        assert len(source) == 1


def test_end_comes_after_what_was_published_before() -> None:
    source = Broadcast[int](capacity=2)
    with source.subscribe() as subscription:
        source.publish(1)
        source.end(Unavailable("docker is gone"))
        source.publish(2)
        assert subscription.wait_next() == 1
        with pytest.raises(Unavailable, match="docker is gone"):
            subscription.wait_next()


def test_later_subscription_is_not_ended() -> None:
    source = Broadcast[int](capacity=2)
    source.end(Unavailable("docker is gone"))
    with source.subscribe() as subscription:
        source.publish(1)
        assert subscription.wait_next() == 1


def test_a_subscription_may_begin_with_what_came_before() -> None:
    source = Broadcast[int](capacity=2)
    with source.subscribe([1]) as subscription, source.subscribe([1, 2, 3]) as behind:
        source.publish(2)
        assert [subscription.wait_next(), subscription.wait_next()] == [1, 2]
        with pytest.raises(ResourceExhausted, match="fell 2 changes behind"):
            behind.wait_next()
        assert len(source) == 1


def test_leaving_the_block_unsubscribes() -> None:
    source = Broadcast[int](capacity=1)
    with source.subscribe():
        assert len(source) == 1
    assert len(source) == 0


def test_wait_is_woken_by_an_item_from_another_thread() -> None:
    source = Broadcast[int](capacity=1)
    read: list[int] = []
    with source.subscribe() as subscription:
        reader = threading.Thread(target=lambda: read.append(subscription.wait_next()))
        reader.start()
        source.publish(7)
        reader.join(10)
    assert read == [7]


def test_wait_ends_with_its_client() -> None:
    source = Broadcast[int](capacity=1)
    scope = deadline.Scope()
    with source.subscribe() as subscription, deadline.entered(scope):
        canceller = threading.Timer(0.01, scope.cancel)
        canceller.start()
        with pytest.raises(Cancelled):
            subscription.wait_next()
        canceller.join()


def test_wait_ends_with_its_deadline() -> None:
    source = Broadcast[int](capacity=1)
    with source.subscribe() as subscription, deadline.bound(0.01), pytest.raises(DeadlineExceeded):
        subscription.wait_next()
