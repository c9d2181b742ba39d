"""Deadlines and cancellations of scopes, and the waits that they end."""

import threading

import pytest

from shim.base import deadline
from shim.base.deadline import Scope
from shim.domain.errors import Cancelled, DeadlineExceeded


def test_work_outside_of_any_scope_is_unbounded() -> None:
    scope = deadline.current()
    assert scope.remaining() is None
    assert scope.remaining(5) == 5
    assert not scope.cancelled
    assert not scope.expired
    scope.check("work")


def test_a_scope_returns_the_time_left() -> None:
    scope = Scope(seconds=60)
    left = scope.remaining()
    assert left is not None
    assert 50 < left <= 60
    assert scope.remaining(5) == 5
    assert scope.remaining(500) != 500
    scope.check("work")


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_expired_scope_raises_deadline_exceeded(seconds: float) -> None:
    scope = Scope(seconds=seconds)
    assert scope.expired
    assert scope.remaining() == scope.remaining(5) == 0
    with pytest.raises(DeadlineExceeded, match=r"^stop container c1: the deadline of the request has passed$"):
        scope.check("stop container c1")


def test_a_cancellation_takes_precedence_over_the_deadline() -> None:
    scope = Scope(seconds=0)
    scope.cancel()
    with pytest.raises(Cancelled, match=r"^stop container c1: the client cancelled the request$"):
        scope.check("stop container c1")


def test_cancel_wakes_each_waiter_once_and_only_inside_its_block() -> None:
    scope = Scope()
    woken: list[str] = []
    with scope.on_cancel(lambda: woken.append("early")):
        pass
    with scope.on_cancel(lambda: woken.append("first")), scope.on_cancel(lambda: woken.append("second")):
        scope.cancel()
        scope.cancel()
    assert sorted(woken) == ["first", "second"]
    assert scope.cancelled


def test_a_waiter_of_a_cancelled_scope_is_woken_at_once() -> None:
    scope = Scope()
    scope.cancel()
    woken: list[str] = []
    with scope.on_cancel(lambda: woken.append("late")):
        assert woken == ["late"]
    assert woken == ["late"]


def test_all_waiters_are_woken_even_if_one_of_them_raises() -> None:
    scope = Scope()
    woken: list[str] = []

    def fail() -> None:
        woken.append("failing")
        raise OSError("the socket is closed already")

    with (
        scope.on_cancel(lambda: woken.append("before")),
        scope.on_cancel(fail),
        scope.on_cancel(lambda: woken.append("after")),
        pytest.raises(OSError, match="the socket is closed already"),
    ):
        scope.cancel()
    assert sorted(woken) == ["after", "before", "failing"]


def test_cancel_wakes_a_waiter_in_another_thread() -> None:
    scope = Scope()
    waiting, awake = threading.Event(), threading.Event()

    def wait() -> None:
        with scope.on_cancel(awake.set):
            waiting.set()
            awake.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    waiting.wait()
    scope.cancel()
    thread.join()


def test_the_current_scope_is_the_innermost() -> None:
    outer = Scope(seconds=60)
    before = deadline.current()
    with deadline.entered(outer) as entered:
        assert entered is deadline.current() is outer
        with deadline.bound(5) as inner:
            assert deadline.current() is inner
        assert deadline.current() is outer
    assert deadline.current() is before


def test_the_outer_scope_is_restored_after_an_error() -> None:
    before = deadline.current()
    with pytest.raises(ZeroDivisionError), deadline.bound(5):
        raise ZeroDivisionError
    assert deadline.current() is before


def test_a_bound_cannot_extend_the_deadline() -> None:
    with deadline.bound(5) as outer, deadline.bound(500) as inner:
        left = inner.remaining()
        assert left is not None
        assert left <= 5
        assert outer.remaining(500) != 500
    with deadline.bound(500), deadline.bound(5) as inner:
        assert inner.remaining(500) != 500


def test_a_cancellation_reaches_inner_bounds() -> None:
    client = Scope()
    with deadline.entered(client), deadline.bound(60), deadline.bound(30) as inner:
        client.cancel()
        assert inner.cancelled


def test_an_expired_bound_does_not_affect_the_outer_scope() -> None:
    with deadline.bound(60) as outer:
        with deadline.bound(0) as inner:
            assert inner.expired
        assert not outer.expired
        outer.check("work")


def test_a_shielded_block_is_not_cancelled_with_its_client() -> None:
    client = Scope(seconds=0)
    client.cancel()
    with deadline.entered(client), deadline.shielded(60) as scope:
        assert deadline.current() is scope
        scope.check("undo")
        assert scope.remaining(500) != 500


def test_a_timeout_longer_than_poll_allows_counts_as_none() -> None:
    assert Scope(seconds=2.0**63).remaining() is None
    with deadline.bound(2.0**63) as scope:
        assert scope.remaining() is None


def test_restart_moves_the_deadline() -> None:
    scope = Scope(seconds=0)
    scope.restart(60)
    left = scope.remaining()
    assert left is not None
    assert 50 < left <= 60
    scope.restart(None)
    assert scope.remaining() is None
    assert not scope.expired


class Box:
    """A value that another thread sets."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.value = ""

    def put(self, value: str) -> None:
        with self.changed:
            self.value = value
            self.changed.notify_all()


def test_wait_for_returns_the_value_of_the_predicate() -> None:
    box = Box()
    setter = threading.Thread(target=box.put, args=("found",))
    with deadline.bound(20), box.changed:
        setter.start()  # it waits for the lock, which `wait_for` releases
        assert deadline.wait_for(box.changed, lambda: box.value, what="the box") == "found"
    setter.join()


def test_wait_for_returns_a_true_value_even_if_the_scope_has_ended() -> None:
    box = Box()
    box.put("found")
    with deadline.entered(Scope(seconds=0)):
        assert deadline.wait_for(box.changed, lambda: box.value, what="the box") == "found"


def test_wait_for_ends_at_its_limit_and_at_the_deadline() -> None:
    box = Box()
    assert deadline.wait_for(box.changed, lambda: box.value, what="the box", limit=0.01) == ""
    with deadline.bound(0.01), pytest.raises(DeadlineExceeded, match=r"^the box: "):
        deadline.wait_for(box.changed, lambda: box.value, what="the box", limit=20)


def test_wait_for_is_woken_by_a_cancellation() -> None:
    box, scope = Box(), Scope(seconds=20)

    def predicate() -> str:
        # Another thread cancels; it gets the lock once the wait has begun.
        threading.Thread(target=scope.cancel).start()
        return box.value

    with deadline.entered(scope), pytest.raises(Cancelled, match=r"^the box: "):
        deadline.wait_for(box.changed, predicate, what="the box")
