"""Measurements: code reports how long its work took, and subscribers such as the metrics observe the reports.

Nothing is stored. Without a subscriber, a report only tests an empty tuple.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Kinds of measurements, each with the names of its labels."""

    RPC = ("method", "code")
    DOCKER = ("operation", "result")
    CNI = ("plugin", "verb", "result")
    STREAM = ("kind", "result")
    NRI = ("plugin", "event", "result")
    EXEC = ("way", "reason")  # time until the command has begun; 0 for the reason why Docker runs it
    REFUSED = ("server", "reason")  # a connection; the time is 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """One completed piece of work."""

    kind: Kind
    labels: tuple[str, ...]
    """Values of the kind's labels, in the same order."""
    seconds: float


Observer = Callable[[Measurement], None]

_observers: tuple[Observer, ...] = ()


def report(kind: Kind, *labels: str, seconds: float) -> None:
    """Report a completed piece of work. Observers are called in this thread."""
    for observe in _observers:
        observe(Measurement(kind, labels, seconds))


class Timing:
    """A handle for the measurement of one block."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        """Discard the measurement of this block."""
        self.dropped = True


@contextmanager
def timed(kind: Kind, *labels: str) -> Iterator[Timing]:
    """Report the duration of the block. The last label, the result, is `ok` or the name of the error class."""
    timing, began, result = Timing(), time.monotonic(), "ok"
    try:
        yield timing
    except BaseException as error:
        result = type(error).__name__
        raise
    finally:
        if not timing.dropped:
            report(kind, *labels, result, seconds=time.monotonic() - began)


@contextmanager
def subscribed(observe: Observer) -> Iterator[None]:
    """Call `observe` with every measurement inside the block."""
    stop = subscribe(observe)
    try:
        yield
    finally:
        stop()


def subscribe(observe: Observer) -> Callable[[], None]:
    """Call `observe` with every measurement until the function that is returned is called."""
    global _observers  # noqa: PLW0603 - reports come from all modules, without a parameter for a meter

    def stop() -> None:
        global _observers  # noqa: PLW0603 - as above
        _observers = tuple(each for each in _observers if each is not observe)

    _observers = (*_observers, observe)
    return stop
