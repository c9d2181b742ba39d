"""Work that several callers want at the same time, done once for all of them."""

import contextvars
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Generic, TypeVar

from shim.base import deadline
from shim.base.deadline import Scope
from shim.base.locks import KeyedLocks
from shim.base.thread_pool import CachedThreadPool
from shim.domain.errors import ShimError

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """One thread for each piece of work under way; what has been done is not remembered. Thread-safe.

    The caller who came first does the work himself if he has no deadline: to have another thread do it, and to be woken
    at its end, takes 0.2 ms. When he leaves while others wait on, his thread goes on for them; nobody misses it, since
    he is gone. One with a deadline may have work of his own to do when it has passed, so another thread does the work.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way: dict[Hashable, _Flight[T]] = {}
        self._crew = CachedThreadPool("flight")

    def join(self, key: Hashable, work: Callable[[], T], *, what: str) -> T:
        """Give the result of `work`, or raise its failure; joins the work that runs for an equal `key`.

        The wait ends with the current scope: Cancelled or DeadlineExceeded, said of `what`. The work itself runs in
        a scope of its own, without a deadline, which is cancelled when the last caller has left. The key may hold
        secrets: it is never shown.
        """
        flight, is_first = self._board(key, work)
        if is_first and deadline.current().remaining() is None:
            return self._fly_here(key, flight, what)
        try:
            if is_first:
                self._send_off(key, flight)
            return self._wait_landed(flight, what)
        finally:
            self._leave(key, flight)

    def _board(self, key: Hashable, work: Callable[[], T]) -> "tuple[_Flight[T], bool]":
        """Give the flight, and whether it is a new one, which the caller has to see off."""
        with self._changed:
            flight = self._under_way.get(key)
            is_first = flight is None
            if flight is None:
                flight = self._under_way[key] = _Flight(work)
            flight.passengers += 1
            return flight, is_first

    def _fly_here(self, key: Hashable, flight: "_Flight[T]", what: str) -> T:
        """Do the work in this thread; a caller who leaves before the end is not counted any more."""
        scope = deadline.current()
        with scope.on_cancel(partial(self._leave, key, flight)):
            self._fly(key, flight)
        scope.check(what)
        return flight.outcome()

    def _send_off(self, key: Hashable, flight: "_Flight[T]") -> None:
        """Have another thread do the work. If none can be had, those who wait are told; who comes later begins anew."""
        try:
            self._crew.run(partial(contextvars.copy_context().run, self._fly, key, flight))
        except BaseException as failure:  # noqa: BLE001 - raised again in every caller
            flight.fail(failure)
            self._land(key, flight)

    def _fly(self, key: Hashable, flight: "_Flight[T]") -> None:
        flight.fly()
        abandoned = not self._land(key, flight)
        if abandoned and flight.is_fault:
            flight.outcome()  # no caller is left to hear of it; the thread's last words reach the log

    def _land(self, key: Hashable, flight: "_Flight[T]") -> int:
        """Tell those who wait that the flight is over; gives how many there are."""
        with self._changed:
            flight.landed = True
            self._forget(key, flight)
            self._changed.notify_all()
            return flight.passengers

    def _wait_landed(self, flight: "_Flight[T]", what: str) -> T:
        scope = deadline.current()
        with scope.on_cancel(self._wake), self._changed:
            while not flight.landed:
                scope.check(what)
                self._changed.wait(scope.remaining())
        return flight.outcome()

    def _leave(self, key: Hashable, flight: "_Flight[T]") -> None:
        with self._changed:
            flight.passengers -= 1
            if flight.passengers or flight.landed:
                return
            # Whoever comes now starts anew: this work is about to fail.
            self._forget(key, flight)
        flight.scope.cancel()

    def _forget(self, key: Hashable, flight: "_Flight[T]") -> None:
        if self._under_way.get(key) is flight:
            del self._under_way[key]

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class CoalescedRefresh(Generic[T]):
    """Work whose result must be newer than the question: nobody is told what was begun before he came. Thread-safe.

    So who comes while it is done waits for the next time, together with all others who come until that begins. One runs
    at a time, however many ask.
    """

    def __init__(self, work: Callable[[], T], *, what: str) -> None:
        """`what` says what is waited for, in errors."""
        self._work = work
        self._what = what
        self._flights: SingleFlight[T] = SingleFlight()
        self._turn = KeyedLocks()
        self._begun = 0

    def join(self) -> T:
        """Give a result of the work that began after this call; bounds and failures as with SingleFlight."""
        return self._flights.join(self._begun, self._depart, what=self._what)

    def _depart(self) -> T:
        # A wait that ends with the scope: else each caller who gives up while a run hangs would leave a thread here.
        with self._turn.hold(self._what):
            self._begun += 1
            return self._work()


class _Flight(Generic[T]):
    """One piece of work and those who wait for it; guarded by the lock of its SingleFlight."""

    __slots__ = ("_failure", "_result", "_work", "landed", "passengers", "scope")

    def __init__(self, work: Callable[[], T]) -> None:
        self.scope = Scope()
        self.passengers = 0
        self.landed = False
        self._work = work
        self._result: list[T] = []
        self._failure: BaseException | None = None

    def fly(self) -> None:
        try:
            with deadline.entered(self.scope):
                self._result.append(self._work())
        except BaseException as failure:  # noqa: BLE001 - raised again in every caller
            self.fail(failure)

    def fail(self, failure: BaseException) -> None:
        self._failure = failure

    @property
    def is_fault(self) -> bool:
        return self._failure is not None and not isinstance(self._failure, ShimError)

    def outcome(self) -> T:
        if self._failure is not None:
            raise self._failure
        return self._result[0]
