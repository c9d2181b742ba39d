"""Where what the server does is counted: those who do it report here, and whoever wants to know listens.

Nothing is kept. While nobody listens, a report costs one look at an empty tuple.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What was done; the labels of each kind are named beside it."""

    RPC = ("method", "code")
    DOCKER = ("operation", "result")
    CNI = ("plugin", "verb", "result")
    STREAM = ("kind", "result")
    REFUSED = ("server", "reason")  # a connection; takes no time


@dataclass(frozen=True, slots=True)
class Done:
    """One piece of work that has ended."""

    kind: Kind
    labels: tuple[str, ...]
    """Values, in the order of the kind's names."""
    seconds: float


Listener = Callable[[Done], None]

_listeners: tuple[Listener, ...] = ()


def report(kind: Kind, *labels: str, seconds: float) -> None:
    """Say that a piece of work has ended. Listeners are called in the thread that did it."""
    for listener in _listeners:
        listener(Done(kind, labels, seconds))


class Timing:
    """One block that is timed."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = False

    def drop(self) -> None:
        """Let the block go unreported."""
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
def subscribed(listener: Listener) -> Iterator[None]:
    """Let `listener` hear of everything inside the block."""
    global _listeners  # noqa: PLW0603 - what reports is everywhere, and must not carry a meter along
    _listeners = (*_listeners, listener)
    try:
        yield
    finally:
        _listeners = tuple(each for each in _listeners if each is not listener)
