"""A key has one holder at a time, and a wait ends with its request."""

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress

import pytest

from shim.base import deadline
from shim.base.gather import gather
from shim.base.locks import KeyedLocks
from shim.domain.errors import Cancelled, DeadlineExceeded


@contextmanager
def held_elsewhere(locks: KeyedLocks, key: Hashable) -> Iterator[None]:
    """Hold `key` in another thread inside the block."""
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.hold(key):
            holding.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait()
    try:
        yield
    finally:
        release.set()
        holder.join()


def test_a_key_has_one_holder_at_a_time() -> None:
    locks = KeyedLocks()
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            with locks.hold("key"):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)

    gather([lambda number=number: work(number) for number in range(8)])  # type: ignore[misc]
    assert len(most) == 400
    assert set(most) == {1}


def test_a_key_has_at_most_as_many_holders_as_places() -> None:
    locks = KeyedLocks()
    with locks.hold_place("key", places=2), locks.hold_place("key", places=2):
        assert [row["lock"] for row in locks.rows()] == ["key", "key"]
        with deadline.bound(0.02), pytest.raises(DeadlineExceeded), locks.hold_place("key", places=2):
            pytest.fail("three holders")
    with deadline.bound(0), locks.hold("key"):
        pass
    assert not locks.rows()


def test_other_keys_do_not_wait() -> None:
    locks = KeyedLocks()
    with held_elsewhere(locks, ("sandbox", "a")), locks.hold(("sandbox", "b")), locks.hold(("image", "a")):
        pass


def test_a_key_is_free_after_an_error_in_the_block() -> None:
    locks = KeyedLocks()
    with pytest.raises(ZeroDivisionError), locks.hold("key"):
        raise ZeroDivisionError
    with deadline.bound(0), locks.hold("key"):
        pass


def test_the_deadline_ends_the_wait() -> None:
    locks = KeyedLocks()
    with (
        held_elsewhere(locks, "key"),
        deadline.bound(0.02),
        pytest.raises(DeadlineExceeded, match="wait for the lock of key: the deadline"),
        locks.hold("key"),
    ):
        pytest.fail("two holders")


def test_a_cancelled_client_ends_only_its_own_wait() -> None:
    locks = KeyedLocks()
    scope = deadline.Scope()
    waiting = threading.Event()
    stays_got_it = threading.Event()
    failures: list[Exception] = []

    class Noticing(str):
        """A key that signals when a caller checks whether it is held."""

        __slots__ = ()

        def __hash__(self) -> int:
            waiting.set()
            return super().__hash__()

    def leave() -> None:
        with deadline.entered(scope):
            try:
                with locks.hold(Noticing("key")):
                    pass
            except Cancelled as error:
                failures.append(error)

    def stay() -> None:
        with locks.hold("key"):
            stays_got_it.set()

    with held_elsewhere(locks, "key"):
        stayer = threading.Thread(target=stay)
        stayer.start()
        leaver = threading.Thread(target=leave)
        leaver.start()
        waiting.wait()
        scope.cancel()
        leaver.join()
        assert len(failures) == 1
        assert not stays_got_it.is_set()
    stayer.join()
    assert stays_got_it.is_set()


def test_a_free_key_is_given_even_to_a_cancelled_client() -> None:
    # The holder itself checks whether its request was cancelled.
    scope = deadline.Scope()
    scope.cancel()
    locks = KeyedLocks()
    with deadline.entered(scope), locks.hold("key"):
        pass


def test_rows_show_holders_and_the_number_of_waiters() -> None:
    locks = KeyedLocks()
    with held_elsewhere(locks, "a"):
        scope = deadline.Scope()
        waiter = threading.Thread(target=lambda: wait_in(locks, "a", scope))
        waiter.start()
        while [row["waiting"] for row in locks.rows()] != [1]:
            waiter.join(0.01)
        [row] = locks.rows()
        scope.cancel()
        waiter.join()

        assert (row["lock"], row["waiting"]) == ("a", 1)
        assert row["thread"] != threading.current_thread().name
        assert [each["waiting"] for each in locks.rows()] == [0]
    assert locks.rows() == []


def wait_in(locks: KeyedLocks, key: Hashable, scope: deadline.Scope) -> None:
    with deadline.entered(scope), suppress(Cancelled), locks.hold(key):
        pass
