"""Subscribers read all items in order, or get an error."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from shim.base import broadcast, deadline
from shim.base.broadcast import Broadcast, Subscription
from shim.domain.errors import Cancelled, DeadlineExceeded, ResourceExhausted, ShimError, Unavailable


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


def test_the_end_comes_after_the_items_published_before() -> None:
    source = Broadcast[int](capacity=2)
    with source.subscribe() as subscription:
        source.publish(1)
        source.end(Unavailable("docker is gone"))
        source.publish(2)
        assert subscription.wait_next() == 1
        with pytest.raises(Unavailable, match="docker is gone"):
            subscription.wait_next()


def test_end_does_not_affect_later_subscriptions() -> None:
    source = Broadcast[int](capacity=2)
    source.end(Unavailable("docker is gone"))
    with source.subscribe() as subscription:
        source.publish(1)
        assert subscription.wait_next() == 1


def test_a_subscription_may_begin_with_earlier_items() -> None:
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


def test_wait_next_is_woken_by_an_item_from_another_thread() -> None:
    source = Broadcast[int](capacity=1)
    read: list[int] = []
    with source.subscribe() as subscription:
        reader = threading.Thread(target=lambda: read.append(subscription.wait_next()))
        reader.start()
        source.publish(7)
        reader.join(10)
    assert read == [7]


def test_wait_next_ends_when_the_client_cancels() -> None:
    source = Broadcast[int](capacity=1)
    scope = deadline.Scope()
    with source.subscribe() as subscription, deadline.entered(scope):
        canceller = threading.Timer(0.01, scope.cancel)
        canceller.start()
        with pytest.raises(Cancelled):
            subscription.wait_next()
        canceller.join()


def test_wait_next_ends_at_the_deadline() -> None:
    source = Broadcast[int](capacity=1)
    with source.subscribe() as subscription, deadline.bound(0.01), pytest.raises(DeadlineExceeded):
        subscription.wait_next()


class Reader:
    """Takes items in a thread, each when `gate` is open."""

    def __init__(self, subscription: Subscription[int], gate: threading.Event) -> None:
        self.taken: list[int] = []
        self.error: ShimError | None = None
        self._thread = threading.Thread(target=self._read, args=(subscription, gate), daemon=True)
        self._thread.start()

    def _read(self, subscription: Subscription[int], gate: threading.Event) -> None:
        try:
            while True:
                item = subscription.wait_next()
                with subscription.handing_over():
                    assert gate.wait(20)
                    self.taken.append(item)
        except ShimError as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


def opened() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def test_wait_taken_ends_when_all_clients_have_all_items() -> None:
    source = Broadcast[int](capacity=1000)
    with source.subscribe() as first, source.subscribe() as second:
        readers = [Reader(first, opened()), Reader(second, opened())]
        for number in range(500):
            source.publish(number)
            assert source.wait_taken() == 0
            assert [reader.taken[-1] for reader in readers] == [number] * 2


def test_wait_taken_drops_a_client_that_does_not_take_its_item() -> None:
    source = Broadcast[int](capacity=10)
    gate = threading.Event()
    with source.subscribe() as slow, source.subscribe() as quick:
        readers = [Reader(slow, gate), Reader(quick, opened())]
        source.publish(1)
        source.publish(2)
        assert source.wait_taken() == 1
        assert readers[1].taken == [1, 2]
        assert len(source) == 1
        gate.set()
        readers[0].join()
        assert readers[0].taken == [1]
        assert isinstance(readers[0].error, ResourceExhausted)
        assert "has not taken a change within 100 ms" in str(readers[0].error)


def test_wait_taken_drops_a_subscriber_that_never_reads() -> None:
    source = Broadcast[int](capacity=10)
    with source.subscribe() as subscription:
        source.publish(1)
        assert source.wait_taken() == 1
        with pytest.raises(ResourceExhausted, match="needed more than 2 s"):
            subscription.wait_next()


def test_concurrent_wait_taken_calls_drop_a_subscriber_once() -> None:
    source = Broadcast[int](capacity=10)
    gate = threading.Event()
    with source.subscribe() as slow, ThreadPoolExecutor(30) as pool:
        Reader(slow, gate)
        source.publish(1)
        assert sum(pool.map(lambda _: source.wait_taken(), range(30))) == 1
        gate.set()


def test_a_cancelled_wait_taken_drops_no_subscriber() -> None:
    source = Broadcast[int](capacity=10)
    scope = deadline.Scope()
    scope.cancel()
    with source.subscribe(), deadline.entered(scope):
        source.publish(1)
        assert source.wait_taken() == 0
        assert len(source) == 1


def test_wait_taken_ends_when_the_subscription_ends() -> None:
    source = Broadcast[int](capacity=10)
    with source.subscribe() as subscription, ThreadPoolExecutor(1) as pool:
        source.publish(1)
        waiting = pool.submit(source.wait_taken)
        source.unsubscribe(subscription)
        assert waiting.result(20) == 0


def test_wait_taken_counts_ten_ticks_from_when_the_client_is_handed_the_item(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of a stream runs after the item was published, so its first tick must not count as idle."""
    source = Broadcast[str](capacity=10)
    subscription = source.subscribe()
    waits = 0

    with ExitStack() as client:

        def wait(_marks: object, _seconds: float) -> bool:
            nonlocal waits
            waits += 1
            if waits == 1:
                subscription.wait_next()
                client.enter_context(subscription.handing_over())
            return False

        monkeypatch.setattr(broadcast, "_wait_first", wait)
        source.publish("item")
        assert source.wait_taken() == 1
    assert waits == 1 + broadcast._TICKS_IDLE
