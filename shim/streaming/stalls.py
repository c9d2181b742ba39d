"""Policies for how long output waits for a client that does not read it."""

import threading
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from shim.domain.errors import ShimError
from shim.streaming.channel import Channel
from shim.streaming.session import Session
from shim.streaming.spdy import Buffer


class Stalled(ShimError):
    """A client has not read the output of a process in time."""


class StallPolicy(Protocol):
    """Decides how long to wait for a client that does not read."""

    @property
    def seconds(self) -> float | None:
        """Return the seconds to wait before a call of `waited`; None for no limit."""
        ...

    def waited(self, *, first: bool) -> None:
        """Raise an error to give up, after a wait of `seconds`. `first`: it was the first wait for these bytes."""
        ...


class WaitForever:
    """Waits for the client until the session ends."""

    seconds = None

    def waited(self, *, first: bool) -> None:
        """Never called, because the wait has no limit."""


CHECK_SECONDS = 5.0
"""Interval of checks of a slow client. Meanwhile the container cannot write, not even to its log."""

STRICT_CHECK_SECONDS = 0.5
"""The interval once a client of the container has stalled, because further clients may stall one after another."""

MIN_BYTES = 32 << 10
"""Minimum bytes that a client must read between two checks. The kernel may report progress in steps up to this size."""


class CheckInterval:
    """The interval of checks of a container's clients, in seconds."""

    def __init__(self) -> None:
        self.seconds = CHECK_SECONDS


class CheckIntervals:
    """A `CheckInterval` per container, which exists while the container has sessions. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._intervals: WeakValueDictionary[str, CheckInterval] = WeakValueDictionary()

    def of(self, container_id: str) -> CheckInterval:
        """Return the interval of a container."""
        with self._lock:
            return self._intervals.setdefault(container_id, CheckInterval())


class MinimumRate:
    """Raises Stalled if the client has read fewer than MIN_BYTES between two checks."""

    def __init__(self, session: Session, interval: CheckInterval, *, what: str) -> None:
        """Check at `interval`; `what` names the session in the error."""
        self._session = session
        self._interval = interval
        self._what = what
        self._before = 0

    @property
    def seconds(self) -> float:
        """Return the seconds until the next check."""
        return self._interval.seconds

    def waited(self, *, first: bool) -> None:
        """Raise Stalled if the client has read too little since the last check."""
        now = self._session.delivered()
        if not first and now - self._before < MIN_BYTES:
            seconds, self._interval.seconds = self.seconds, STRICT_CHECK_SECONDS
            raise Stalled(
                f"{self._what}: the client has taken less than {MIN_BYTES} bytes of output in {seconds:g} s, and the "
                "container could not go on; its log has the rest"
            )
        self._before = now


def write_with_policy(
    channel: Channel, data: Buffer, policy: StallPolicy, *, unless: Callable[[], bool] = lambda: False
) -> Buffer:
    """Write to a channel as `Channel.write` does; `policy` decides after each wait. Return the rest."""
    first = True
    while (data := channel.write(data, seconds=policy.seconds, unless=unless)) and not unless():
        policy.waited(first=first)
        first = False
    return data
