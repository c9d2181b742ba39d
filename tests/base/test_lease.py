"""A lease has one holder at a time, until it expires."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from shim.base import deadline
from shim.base.gather import gather
from shim.base.lease import Lease
from shim.domain.errors import Cancelled, DeadlineExceeded, ShimError, Unavailable

EVER = 3600.0


@contextmanager
def held_elsewhere(lease: Lease) -> Iterator[None]:
    """Hold the lease in another thread inside the block."""
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lease.hold(what="hold"):
            holding.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert holding.wait(10)
        yield
    finally:
        release.set()
        holder.join()


def test_the_lease_has_one_holder_at_a_time() -> None:
    lease = Lease(EVER)
    inside: list[int] = []
    most: list[int] = []

    begun = threading.Barrier(8)

    def work() -> None:
        begun.wait(10)
        for number in range(50):
            with lease.hold(what="work"):
                inside.append(number)
                time.sleep(0)  # lets another thread run
                most.append(len(inside))
                inside.remove(number)

    gather([work] * 8)
    assert len(most) == 400
    assert set(most) == {1}


def test_a_wait_ends_with_the_current_scope() -> None:
    lease = Lease(EVER)
    with (
        held_elsewhere(lease),
        deadline.bound(0.01),
        pytest.raises(DeadlineExceeded, match="kill pause"),
        lease.hold(what="kill pause"),
    ):
        pytest.fail("two holders")
    with lease.hold(what="kill pause"):
        pass


def test_the_next_waiter_enters_when_the_lease_expires() -> None:
    lease = Lease(0.01)
    with held_elsewhere(lease), deadline.bound(10), lease.hold(what="kill pause"):
        pass


def test_an_expired_holder_does_not_release_the_lease_of_its_successor() -> None:
    lease = Lease(0.01)
    with ExitStack() as late:
        late.enter_context(held_elsewhere(lease))
        with deadline.bound(10):
            late.enter_context(lease.hold(what="take over"))
        lease._seconds = EVER
        with lease.hold(what="take over once more"):
            late.close()
            with deadline.bound(0.01), pytest.raises(DeadlineExceeded), lease.hold(what="a third"):
                pytest.fail("two holders")


@pytest.mark.parametrize("error", [Cancelled, DeadlineExceeded, Unavailable])
def test_the_lease_stays_held_after_an_error_while_docker_may_go_on(error: type[ShimError]) -> None:
    lease = Lease(EVER)
    with pytest.raises(error), lease.hold(what="kill pause"):
        raise error("docker has not answered yet")
    with deadline.bound(0.01), pytest.raises(DeadlineExceeded), lease.hold(what="kill pause"):
        pytest.fail("two of them")


def test_rows_show_the_holder() -> None:
    lease = Lease(EVER)
    assert lease.rows("pause exit") == []
    with lease.hold(what="kill pause"):
        [row] = lease.rows("pause exit")
        assert (row["lock"], row["thread"], row["waiting"]) == ("pause exit", "MainThread", 0)
    assert lease.rows("pause exit") == []


def test_the_lease_is_free_after_another_error() -> None:
    lease = Lease(EVER)
    with pytest.raises(ZeroDivisionError), lease.hold(what="divide"):
        _ = 1 / 0
    with deadline.bound(10), lease.hold(what="divide"):
        pass
