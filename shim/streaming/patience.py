"""How long output waits for a client that does not take it."""

import threading
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from shim.domain.errors import ShimError
from shim.streaming.channel import Channel
from shim.streaming.spdy import Buffer
from shim.streaming.transport import Session


class Stalled(ShimError):
    """A client has not taken what a process has written."""


class Patience(Protocol):
    """What is done while a client takes nothing."""

    @property
    def seconds(self) -> float | None:
        """How long to wait until `waited` is called."""
        ...

    def waited(self, *, first: bool) -> None:
        """Act on a wait of `seconds`, the first one for these bytes or another; raise an error to end it."""
        ...


class Endless:
    """Waits for the client as long as the session lasts."""

    seconds = None

    def waited(self, *, first: bool) -> None:
        """Is never called: no wait ends before the session does."""


LOOK_SECONDS = 5.0
"""Between two looks at a client for which a container waits: it cannot write meanwhile, not even to its log."""

STRICT_LOOK_SECONDS = 0.5
"""The same once a client of this container has stalled. Others may, one after the other, each at another byte."""

LEAST_BYTES = 32 << 10
"""So much a client takes between two looks. In fewer steps the kernel may not tell of what it takes."""


class Looks:
    """How often the clients of one container are looked at."""

    def __init__(self) -> None:
        self.seconds = LOOK_SECONDS


class LooksByContainer:
    """The `Looks` that the sessions of each container share, for as long as it has any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: WeakValueDictionary[str, Looks] = WeakValueDictionary()

    def of(self, container_id: str) -> Looks:
        """Return those of a container."""
        with self._lock:
            return self._looks.setdefault(container_id, Looks())


class LeastPace:
    """Ends a wait with Stalled when its client has taken fewer than LEAST_BYTES between two looks."""

    def __init__(self, session: Session, looks: Looks, *, what: str) -> None:
        """Look as `looks` says; `what` is the session, for people."""
        self._session = session
        self._looks = looks
        self._what = what
        self._before = 0

    @property
    def seconds(self) -> float:
        """How long to wait until the next look."""
        return self._looks.seconds

    def waited(self, *, first: bool) -> None:
        """Take a look."""
        now = self._session.delivered()
        if not first and now - self._before < LEAST_BYTES:
            seconds, self._looks.seconds = self.seconds, STRICT_LOOK_SECONDS
            raise Stalled(
                f"{self._what}: the client has taken less than {LEAST_BYTES} bytes of output in {seconds:g} s, and the "
                "container could not go on; its log has the rest"
            )
        self._before = now


def write_patiently(
    channel: Channel, data: Buffer, patience: Patience, *, unless: Callable[[], bool] = lambda: False
) -> Buffer:
    """Write to a channel as `Channel.write` does, and have `patience` decide about each wait. Return the rest."""
    first = True
    while (data := channel.write(data, seconds=patience.seconds, unless=unless)) and not unless():
        patience.waited(first=first)
        first = False
    return data
