"""Measurements of what the server does: code reports them here, and subscribers observe them.

Nothing is stored. Without a subscriber, a report costs one test of an empty tuple.
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
    EXEC = ("way", "reason")  # until the command has begun; why docker runs it takes no time
    REFUSED = ("server", "reason")  # a connection; takes no time


@dataclass(frozen=True, slots=True)
class Measurement:
    """One piece of work that has ended."""

    kind: Kind
    labels: tuple[str, ...]
    """Values, in the order of the kind's names."""
    seconds: float


Observer = Callable[[Measurement], None]

_observers: tuple[Observer, ...] = ()


def report(kind: Kind, *labels: str, seconds: float) -> None:
    """Report a piece of work that has ended. Observers are called in the thread that did it."""
    for observe in _observers:
        observe(Measurement(kind, labels, seconds))


class Timing:
    """One block that is timed."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        """Discard the measurement of this block."""
        self.dropped = True


@contextmanager
def timed(kind: Kind, *labels: str) -> Iterator[Timing]:
    """Report the block when it ends; its last label, the result, is `ok` or the name of the error."""
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
    global _observers  # noqa: PLW0603 - reports come from everywhere, which must not all be handed a meter
    _observers = (*_observers, observe)
    try:
        yield
    finally:
        _observers = tuple(each for each in _observers if each is not observe)
